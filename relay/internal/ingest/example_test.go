package ingest_test

import (
	"fmt"
	"strings"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/ingest"
)

func ExampleDecoder() {
	catalog, err := relay.NewCatalog(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	d := ingest.NewDecoder(catalog)
	n, rejected := d.Decode([]byte(`{"topic": "job.created", "object": {"id": "7"}, "context": {"seq": `+
		`9007199254740993}}`),
		ingest.Defaults{Hub: "hub-1", Account: "account-1"})
	if rejected != nil {
		fmt.Println(rejected)
		return
	}
	fmt.Println(
		strings.NewReplacer(`"context":`, "\"context\":\n", `"containers"`, "\n\"containers\"").Replace(string(n.Data)),
	)

	_, rejected = d.DecodeBody("application/json", []byte(`[{"topic":"job.craeted","context":{}}]`),
		ingest.Defaults{Hub: "hub-1"})
	fmt.Println(rejected)
	// Output:
	// {"topic":"job.created","object":{"id":"7","state":"","error":""},"context":
	// {"hub_id":"hub-1","account_id":"account-1","environments":[],"dns_zones":[],"clusters":[],
	// "containers":[],"seq":9007199254740993},"flags":null}
	// there is no topic "job.craeted"; the nearest topic is job.created (422.invalid-argument at /0/topic)
}
