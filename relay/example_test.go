package relay_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

func ExampleParsePatterns() {
	p, err := relay.ParsePatterns([]string{"container.*", "!*.error"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(p.Match("container.instance.state.changed"), p.Match("container.error"), p.Match("job.created"))
	// Output: true false false
}

func ExampleCatalog() {
	c, err := relay.NewCatalog([]string{"backup.finished"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(c.Contains("backup.finished"), c.Suggest("container.craeted"))
	fmt.Println(c.CheckPatterns([]string{"contaner.*"}))
	// Output:
	// true container.created
	// topic pattern "contaner.*" matches no topic; the nearest topic is container.created
}

func ExampleFilter() {
	f := relay.Filter{Hubs: []string{"hub-1"}}
	fmt.Println(f.Match(relay.Notification{Topic: "job.created", Hub: "hub-1"}))
	fmt.Println(f.Match(relay.Notification{Topic: "job.created", Hub: "hub-2"}))
	// Output:
	// true
	// false
}

func ExampleNotification_Envelope() {
	n := relay.Notification{
		Data: []byte(`{"topic":"job.created","object":{"id":"7","state":"new","error":""},` +
			`"context":{"hub_id":"hub-1"}}`),
	}
	e, err := n.Envelope()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(e.Object.ID, e.Object.State, e.Context.HubID)
	// Output: 7 new hub-1
}

func ExampleError() {
	err := relay.NewError(relay.CodeInvalidArgument, "there is no such topic").
		WithPointer(relay.JSONPointer("3", "topic")).WithExtra("nearest", "job.created")
	fmt.Println(err.Status(), err)
	// Output: 422 there is no such topic (422.invalid-argument at /3/topic)
}

func ExampleClassify() {
	err := relay.RetryAfter(errors.New("status 429"), 2*time.Second)
	fmt.Println(relay.Classify(err))
	// Output: retry 2s
}
