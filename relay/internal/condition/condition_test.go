package condition_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/condition"
)

func envelope() *relay.Envelope {
	return &relay.Envelope{
		Topic:  "container.instance.health.status.changed",
		Object: relay.Object{ID: "64b0c0ffee", State: "unhealthy", Error: "exit code 137"},
		Context: relay.Context{
			HubID: "hub-1", AccountID: "acc-1", Environments: []string{"e1", "e2"}, DNSZones: []string{},
			Clusters: []string{"production"}, Containers: []string{"c1", "c2", "x3"},
		},
	}
}

func TestCompile_Results(t *testing.T) {
	for text, want := range map[string]bool{
		`topic == "container.instance.health.status.changed" and object.state == "unhealthy"`: true,
		`topic startsWith "billing."`:                                                                      false,
		`"production" in context.clusters`:                                                                 true,
		`"staging" in context.clusters`:                                                                    false,
		`context.hub_id in ["hub-1", "hub-2"] && context.account_id != ""`:                                 true,
		`object.error matches "code [0-9]+"`:                                                               true,
		`not (object.error contains "137")`:                                                                false,
		`all(context.containers, # startsWith "c")`:                                                        false,
		`all(context.containers, {# startsWith "c" or # startsWith "x"})`:                                  true,
		`all(context.containers, # != "a") and all(context.containers, # != "b")`:                          true,
		`any(context.environments, # == "e2")`:                                                             true,
		`count(context.containers, hasPrefix(#, "c")) == 2`:                                                true,
		`len(filter(context.containers, # startsWith "c")) + 1 == 3`:                                       true,
		`filter(context.containers, # startsWith "x")[0] == "x3"`:                                          true,
		`any(context.containers, let c = #; any(context.environments, # endsWith "2") and c endsWith "2")`: true,
		`len(context.dns_zones) == 0`:                                                                      true,
		`object.id == "" ? false : lower(object.state) == "unhealthy"`:                                     true,
		`let parts = split(topic, "."); parts[0] == "container" and parts[-1] == "changed"`:                true,
		`context.containers | any(# == "x3")`:                                                              true,
		"topic startsWith \"container.\"\n  and // a remark\n  object.error != \"\"":                       true,
		`true`: true,
	} {
		condition, err := condition.Compile(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		for range 2 { // the second evaluation reuses memory of the first
			if got, err := condition(envelope()); got != want || err != nil {
				t.Errorf("%s: %v, %v", text, got, err)
			}
		}
	}
}

func TestCompile_Empty(t *testing.T) {
	for _, text := range []string{"", " \n\t"} {
		if condition, err := condition.Compile(text); condition != nil || err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestCondition_ConcurrentUse(t *testing.T) {
	condition, err := condition.Compile(`all(context.containers, # != "a") and object.state == "unhealthy"`)
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			e := envelope()
			if i%2 == 1 {
				e.Object.State = "healthy"
			}
			for range 500 {
				if got, err := condition(e); got != (i%2 == 0) || err != nil {
					t.Errorf("%d: %v, %v", i, got, err)
					return
				}
			}
		})
	}
	group.Wait()
}

// For any text, Compile returns a condition or one sentence, and the condition returns a result or one sentence.
func FuzzCompile(f *testing.F) {
	for _, text := range []string{
		`topic == "job.error"`, `any(context.containers, # startsWith "c") and not (object.error matches "[0-9]+")`,
		`let x = topic; x in ["a"]`,
		`topic[1:3] == "o"`, `context?.hub_id ?? "x" == "y"`, "a\n\tb", `all([1, 2], {# > 1; # < 3})`,
		`1 / 0 > len(topic) % 0`, `if topic == "" { true } else { false }`,
		`"\u{1F600}" < object.id`, `'\x00'`, "`raw`", `((((((`, `#`, `.x`, `any([[topic]], any(#, # == ""))`,
		`-1 ** 99999 > 0`, `topic | len() > 3`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		compiled, err := condition.Compile(text)
		if err == nil && compiled != nil {
			_, err = compiled(envelope())
		}
		var e *condition.Error
		if err != nil && (!errors.As(err, &e) || strings.Contains(err.Error(), "\n") || e.Text == "") {
			t.Errorf("%q: %v", text, err)
		}
	})
}

func ExampleCompile() {
	condition, err := condition.Compile(`topic endsWith ".error" and "production" in context.clusters`)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(
		condition(&relay.Envelope{Topic: "job.error", Context: relay.Context{Clusters: []string{"production"}}}),
	)
	// Output: true <nil>
}

func BenchmarkCondition(b *testing.B) {
	e := envelope()
	for name, text := range map[string]string{
		"compare": `object.state == "unhealthy" and context.hub_id != "x"`,
		"in":      `"production" in context.clusters`,
		"loop":    `any(context.containers, # startsWith "x")`,
	} {
		condition, err := condition.Compile(text)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if ok, err := condition(e); !ok || err != nil {
					b.Fatal(ok, err)
				}
			}
		})
	}
}
