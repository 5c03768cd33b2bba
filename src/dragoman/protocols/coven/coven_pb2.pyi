from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AgentMessage(_message.Message):
    __slots__ = ("register", "response", "heartbeat")
    REGISTER_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    register: RegisterAgent
    response: MessageResponse
    heartbeat: Heartbeat
    def __init__(self, register: _Optional[_Union[RegisterAgent, _Mapping]] = ..., response: _Optional[_Union[MessageResponse, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ...) -> None: ...

class RegisterAgent(_message.Message):
    __slots__ = ("agent_id", "name", "capabilities", "work_types", "version", "extensions")
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    WORK_TYPES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EXTENSIONS_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    name: str
    capabilities: _containers.RepeatedScalarFieldContainer[str]
    work_types: _containers.RepeatedScalarFieldContainer[str]
    version: str
    extensions: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, agent_id: _Optional[str] = ..., name: _Optional[str] = ..., capabilities: _Optional[_Iterable[str]] = ..., work_types: _Optional[_Iterable[str]] = ..., version: _Optional[str] = ..., extensions: _Optional[_Iterable[str]] = ...) -> None: ...

class MessageResponse(_message.Message):
    __slots__ = ("request_id", "thinking", "text", "tool_use", "tool_result", "done", "error", "file", "cursor", "task_id", "progress", "fault")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    THINKING_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOOL_USE_FIELD_NUMBER: _ClassVar[int]
    TOOL_RESULT_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    thinking: str
    text: str
    tool_use: ToolUse
    tool_result: ToolResult
    done: Done
    error: str
    file: FileData
    cursor: int
    task_id: str
    progress: Progress
    fault: Fault
    def __init__(self, request_id: _Optional[str] = ..., thinking: _Optional[str] = ..., text: _Optional[str] = ..., tool_use: _Optional[_Union[ToolUse, _Mapping]] = ..., tool_result: _Optional[_Union[ToolResult, _Mapping]] = ..., done: _Optional[_Union[Done, _Mapping]] = ..., error: _Optional[str] = ..., file: _Optional[_Union[FileData, _Mapping]] = ..., cursor: _Optional[int] = ..., task_id: _Optional[str] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., fault: _Optional[_Union[Fault, _Mapping]] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("timestamp_ms",)
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    timestamp_ms: int
    def __init__(self, timestamp_ms: _Optional[int] = ...) -> None: ...

class ServerMessage(_message.Message):
    __slots__ = ("welcome", "send_message", "shutdown", "cancel")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    SEND_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SHUTDOWN_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    send_message: SendMessage
    shutdown: Shutdown
    cancel: Cancel
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., send_message: _Optional[_Union[SendMessage, _Mapping]] = ..., shutdown: _Optional[_Union[Shutdown, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("server_id", "agent_id")
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    server_id: str
    agent_id: str
    def __init__(self, server_id: _Optional[str] = ..., agent_id: _Optional[str] = ...) -> None: ...

class SendMessage(_message.Message):
    __slots__ = ("request_id", "thread_id", "sender", "content", "attachments", "task_id", "work_type", "input_json", "answer_json", "attempt", "traceparent", "to_agent", "priority", "context_json")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    THREAD_ID_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENTS_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    WORK_TYPE_FIELD_NUMBER: _ClassVar[int]
    INPUT_JSON_FIELD_NUMBER: _ClassVar[int]
    ANSWER_JSON_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    TO_AGENT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_JSON_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    thread_id: str
    sender: str
    content: str
    attachments: _containers.RepeatedCompositeFieldContainer[FileAttachment]
    task_id: str
    work_type: str
    input_json: str
    answer_json: str
    attempt: int
    traceparent: str
    to_agent: str
    priority: str
    context_json: str
    def __init__(self, request_id: _Optional[str] = ..., thread_id: _Optional[str] = ..., sender: _Optional[str] = ..., content: _Optional[str] = ..., attachments: _Optional[_Iterable[_Union[FileAttachment, _Mapping]]] = ..., task_id: _Optional[str] = ..., work_type: _Optional[str] = ..., input_json: _Optional[str] = ..., answer_json: _Optional[str] = ..., attempt: _Optional[int] = ..., traceparent: _Optional[str] = ..., to_agent: _Optional[str] = ..., priority: _Optional[str] = ..., context_json: _Optional[str] = ...) -> None: ...

class FileAttachment(_message.Message):
    __slots__ = ("filename", "mime_type", "data")
    FILENAME_FIELD_NUMBER: _ClassVar[int]
    MIME_TYPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    filename: str
    mime_type: str
    data: bytes
    def __init__(self, filename: _Optional[str] = ..., mime_type: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class Shutdown(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("request_id", "reason")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    reason: str
    def __init__(self, request_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class ToolUse(_message.Message):
    __slots__ = ("id", "name", "input_json")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    INPUT_JSON_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    input_json: str
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., input_json: _Optional[str] = ...) -> None: ...

class ToolResult(_message.Message):
    __slots__ = ("id", "output", "is_error")
    ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    IS_ERROR_FIELD_NUMBER: _ClassVar[int]
    id: str
    output: str
    is_error: bool
    def __init__(self, id: _Optional[str] = ..., output: _Optional[str] = ..., is_error: _Optional[bool] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ("full_response", "result_json", "question", "is_json")
    FULL_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    RESULT_JSON_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    IS_JSON_FIELD_NUMBER: _ClassVar[int]
    full_response: str
    result_json: str
    question: Question
    is_json: bool
    def __init__(self, full_response: _Optional[str] = ..., result_json: _Optional[str] = ..., question: _Optional[_Union[Question, _Mapping]] = ..., is_json: _Optional[bool] = ...) -> None: ...

class FileData(_message.Message):
    __slots__ = ("filename", "mime_type", "data")
    FILENAME_FIELD_NUMBER: _ClassVar[int]
    MIME_TYPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    filename: str
    mime_type: str
    data: bytes
    def __init__(self, filename: _Optional[str] = ..., mime_type: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("percent", "step", "message", "number", "total")
    PERCENT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    percent: int
    step: str
    message: str
    number: int
    total: int
    def __init__(self, percent: _Optional[int] = ..., step: _Optional[str] = ..., message: _Optional[str] = ..., number: _Optional[int] = ..., total: _Optional[int] = ...) -> None: ...

class Fault(_message.Message):
    __slots__ = ("kind", "message", "retryable", "facts_json")
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    FACTS_JSON_FIELD_NUMBER: _ClassVar[int]
    kind: str
    message: str
    retryable: bool
    facts_json: str
    def __init__(self, kind: _Optional[str] = ..., message: _Optional[str] = ..., retryable: _Optional[bool] = ..., facts_json: _Optional[str] = ...) -> None: ...

class Question(_message.Message):
    __slots__ = ("question", "options_json", "timeout_seconds", "default_json")
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_JSON_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_JSON_FIELD_NUMBER: _ClassVar[int]
    question: str
    options_json: str
    timeout_seconds: float
    default_json: str
    def __init__(self, question: _Optional[str] = ..., options_json: _Optional[str] = ..., timeout_seconds: _Optional[float] = ..., default_json: _Optional[str] = ...) -> None: ...

class FollowRequest(_message.Message):
    __slots__ = ("task_id", "after")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    after: int
    def __init__(self, task_id: _Optional[str] = ..., after: _Optional[int] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("task_id", "reason")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    reason: str
    def __init__(self, task_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class CancelReply(_message.Message):
    __slots__ = ("task_id", "status")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    status: str
    def __init__(self, task_id: _Optional[str] = ..., status: _Optional[str] = ...) -> None: ...
