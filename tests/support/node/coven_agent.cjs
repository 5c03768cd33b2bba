// A coven agent as a Node programmer would write it: @grpc/grpc-js and the document's protobuf text, nothing else.
//
// One argument, as JSON: {address, proto, agentId?, name?, capabilities?, token?, hold?}. Everything that happens to it
// is printed as a line of JSON. A request is answered with all seven events' happy six; with `hold` it stops after the
// first text and waits to be killed.

const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');

const given = JSON.parse(process.argv[2]);
const print = (event) => process.stdout.write(JSON.stringify(event) + '\n');

const definition = loader.loadSync(given.proto, { keepCase: true, longs: String, oneofs: true, defaults: true });
const { coven } = grpc.loadPackageDefinition(definition);
const client = new coven.CovenControl(given.address, grpc.credentials.createInsecure());

const metadata = new grpc.Metadata();
if (given.token) metadata.set('authorization', `Bearer ${given.token}`);

const stream = client.AgentStream(metadata);

// The document: "Wait for Headers: the gateway sends HTTP/2 response headers immediately", and only then register.
stream.on('metadata', () => {
  print({ headers: true });
  stream.write({
    register: { agent_id: given.agentId ?? '', name: given.name ?? '', capabilities: given.capabilities ?? [] },
  });
});

stream.on('data', (message) => {
  if (message.payload === 'welcome') print({ welcome: message.welcome });
  if (message.payload === 'send_message') work(message.send_message);
  if (message.payload === 'shutdown') {
    print({ shutdown: message.shutdown });
    stream.end();
  }
});

function work(request) {
  const attachments = request.attachments.map((file) => ({ ...file, data: file.data.toString('utf8') }));
  print({ request: { ...request, attachments } });
  const respond = (event) => stream.write({ response: { request_id: request.request_id, ...event } });
  respond({ thinking: 'let me see' });
  respond({ text: 'Hello, ' });
  if (given.hold) return print({ holding: true });
  respond({ tool_use: { id: 't1', name: 'clock', input_json: '{"zone":"UTC"}' } });
  respond({ tool_result: { id: 't1', output: 'noon', is_error: false } });
  respond({ text: 'it is noon: 正午 🕛' });
  respond({ file: { filename: 'noon.txt', mime_type: 'text/plain', data: Buffer.from('noon\n') } });
  respond({ done: { full_response: '' } });
}

const beat = setInterval(() => stream.write({ heartbeat: { timestamp_ms: Date.now() } }), 5000);

stream.on('error', () => {}); // its status says it all
stream.on('status', (status) => {
  print({ status: { code: status.code, details: status.details } });
  clearInterval(beat);
  client.close();
});
process.on('SIGTERM', () => stream.end());
