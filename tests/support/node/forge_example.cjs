// The example of the document of forge, word for word, but for the types and this import.
const { randomUUID } = require('crypto');

// Send request
const request = {
  type: 'request:query-tasks',
  id: randomUUID(),
  timestamp: new Date().toISOString(),
  payload: { status: 'queued' }
};
console.log(JSON.stringify(request));

// Listen for response
process.stdin.on('data', (data) => {
  const message = JSON.parse(data.toString());
  if (message.correlationId === request.id) {
    // Handle response
    console.error('Received response:', message.payload);
  }
});
