// Command hubrelay-brokers is the plugin that publishes notifications to a broker: Kafka, NATS JetStream, AMQP, MQTT,
// Redis Streams or PostgreSQL. hubrelay starts it. Package plugins/brokers describes its configuration.
package main

import (
	"fmt"
	"os"

	"github.com/hubrelay/hubrelay/plugins/brokers"
	"github.com/hubrelay/hubrelay/plugins/sdk"
)

var version = "devel" // set by the linker

func main() {
	var config brokers.Config
	sink := brokers.New(&config)
	err := sdk.ServeDeliveries(sink.Deliver, sdk.Config(&config), sdk.Version(version),
		sdk.OnValidate(sink.CheckFiles), sdk.Explain(sink.Preview), sdk.OnStart(sink.Start), sdk.OnStop(sink.Stop))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
