"""A plugin of hubrelay that tracks the state and health of instances, logs flapping ones, and appends a JSON line to a
report for each notification. It is the command of a sink of type plugin, with tls: false and config: {report: FILE}."""
import collections
import json
import os
import sys
import time
from concurrent import futures

import grpc
import health_pb2
import health_pb2_grpc
import sink_pb2
import sink_pb2_grpc

instances = collections.defaultdict(lambda: {"state": "", "health": "", "changes": collections.deque(maxlen=4)})


def handle(n, report):  # after an exception the daemon retries
    event = json.loads(n.data)
    instance = instances[event["object"]["id"]]
    kind = "health" if n.topic == "container.instance.health.status.changed" else "state"
    if n.topic.endswith((".state.changed", ".health.status.changed")):
        if instance[kind] not in ("", event["object"]["state"]):
            instance["changes"].append(time.monotonic())
        instance[kind] = event["object"]["state"]
    if flapping := len(instance["changes"]) == 4 and time.monotonic() - instance["changes"][0] < 600:
        print(event["object"]["id"], "is flapping", file=sys.stderr, flush=True)  # in the log of the daemon
    line = {"topic": n.topic, "id": n.id, "containers": event["context"]["containers"],
            "instance": event["object"]["id"], "state": instance["state"], "health": instance["health"],
            "flapping": flapping}
    with open(report, "a", encoding="utf-8") as f:
        f.write(json.dumps(line) + "\n")


def read_report(config):
    """Returns the name of the file. The operator sees the ValueError."""
    config = json.loads(config)
    if set(config) != {"report"}:
        raise ValueError("config must be {report: FILE} and nothing else")
    return config["report"]


class Sink(sink_pb2_grpc.SinkServicer):
    def Configure(self, request, context):
        try:
            self.report = read_report(request.config)
        except ValueError as e:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(e))
        return sink_pb2.ConfigureResponse()

    def Validate(self, request, context):  # checks a configuration and changes nothing
        try:
            read_report(request.config)
        except ValueError as e:
            return sink_pb2.ValidateResponse(problems=[sink_pb2.Problem(text=str(e))])
        return sink_pb2.ValidateResponse()

    def Deliver(self, requests, context):
        yield sink_pb2.DeliverResponse(credits=1)  # one delivery at a time; more would wait here while their time passes
        for request in requests:
            for d in request.deliveries:
                ack = sink_pb2.Ack(delivery_id=d.id, attempt=d.attempt, outcome=sink_pb2.OUTCOME_OK)
                try:
                    for n in d.notifications:
                        handle(n, self.report)
                except Exception as e:
                    ack.outcome, ack.error = sink_pb2.OUTCOME_RETRY, repr(e)
                yield sink_pb2.DeliverResponse(acks=[ack], credits=1)


class Health(health_pb2_grpc.HealthServicer):
    def Check(self, request, context):
        return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)


if os.environ.get("HUBRELAY_PLUGIN") != "sink":
    sys.exit("this program is a plugin of hubrelay, which starts it")
server = grpc.server(futures.ThreadPoolExecutor(4), options=[("grpc.max_receive_message_length", 64 << 20)])
sink_pb2_grpc.add_SinkServicer_to_server(Sink(), server)
health_pb2_grpc.add_HealthServicer_to_server(Health(), server)
socket = os.environ["PLUGIN_UNIX_SOCKET_DIR"] + "/plugin.sock"
server.add_insecure_port("unix:" + socket)
server.start()
print(f"1|1|unix|{socket}|grpc", flush=True)
sys.stdin.read()  # ends when the daemon ends or stops the plugin
server.stop(grace=1).wait()
