// Command hubrelay-notify is the plugin that sends notifications to chat and push services: Discord, Gotify, Matrix,
// ntfy, Pushover, Teams, Telegram and others. hubrelay starts it. Package plugins/notify describes its configuration.
package main

import (
	"fmt"
	"net/http"
	"os"

	"github.com/hubrelay/hubrelay/plugins/notify"
	"github.com/hubrelay/hubrelay/plugins/sdk"
)

var version = "devel" // set by the linker

func main() {
	var config notify.Config
	sink := notify.New(&config)
	http.DefaultTransport = sink.Transport()
	err := sdk.ServeDeliveries(sink.Deliver, sdk.Config(&config), sdk.Version(version), sdk.Concurrency(1),
		sdk.OnValidate(sink.Start), sdk.Explain(sink.Preview), sdk.OnStart(sink.Start))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
