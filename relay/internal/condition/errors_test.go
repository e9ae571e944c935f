package condition_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/condition"
)

const noSuchFunction = "; the functions are all, any, none, one, count,"

func TestCompile_Errors(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{`objct.state == "x"`, `column 1 of the expression: there is no "objct"; did you mean "object"?`},
		{`object.sate == "x"`, `column 8 of the expression: object has no "sate"; did you mean "state"?`},
		{
			`context.error == ""`,
			`column 9 of the expression: context has no "error"; context has hub_id, account_id, environments, ` +
				`dns_zones, clusters, containers`,
		},
		{`state == "x"`, `column 1 of the expression: there is no "state"; did you mean object.state?`},
		{`hub_id == "h"`, `column 1 of the expression: there is no "hub_id"; did you mean context.hub_id?`},
		{
			`topic == container.error`,
			`column 10 of the expression: there is no "container"; the names are topic, object, context; text goes ` +
				`in quotes`,
		},
		{"topic ==\n  objct", `line 2, column 3 of the expression: there is no "objct"; did you mean "object"?`},
		{`"ä" != topic and objct`, `column 18 of the expression: there is no "objct"`},
		{`topic`, `results in text instead of true or false; compare it`},
		{`context.clusters`, `results in a list of texts instead of true or false`},
		{`object`, `results in object instead of true or false`},
		{
			`topic == 3`,
			`column 7 of the expression: invalid operation: == (mismatched types text and number); compare text ` +
				`with text in quotes`,
		},
		{
			`context.containers == "c1"`,
			`(mismatched types a list of texts and text); search a list with in: "production" in context.clusters`,
		},
		{`"a" in topic`, `in requires a list`},
		{`topic == `, `ends too early`},
		{`topic = "x"`, `column 7 of the expression: "=" is not expected here; compare two values with ==`},
		{
			`topic == "a" AND topic == "b"`,
			`column 14 of the expression: "AND" is not expected here; write and, or, not and in in lower case`,
		},
		{
			`startsWith(topic, "x")`,
			`"startsWith" is not expected here; write it between two values: topic startsWith "error"`,
		},
		{`topic ==  'x`, `literal not terminated; close the quotes`},
		{`any(topic, # == "x")`, `any needs a list (got text)`},
		{`any(context.containers, #)`, `predicate should return boolean (got text); compare each value`},
		{`object.error matches "("`, `column 14 of the expression: error parsing regexp`},
		{`object.error matches topic`, `the pattern after matches must be a text in quotes`},
		{`now() > now()`, `column 1 of the expression: there is no function "now"` + noSuchFunction},
		{`foo(topic)`, `there is no function "foo"` + noSuchFunction},
		{`lenn(topic) > 1`, `there is no function "lenn"; did you mean "len"?`},
		{`any(context.containers, len(toJSON(1))>1)`, `column 29 of the expression: there is no function "toJSON"`},
		{`map(context.containers, #) == []`, `there is no function "map"`},
		{`reduce(context.containers, #acc) == "x"`, `there is no function "reduce"`},
		{`repeat("a", 1000000000) == ""`, `there is no function "repeat"`},
		{`::now() == 1`, `there is no function "now"`},
		{`get($env, "topic") == "x"`, `there is no function "get"`},
		{`any(1..1000000, # > 3)`, `ranges are not supported`},
		{`topic + "x" == "y"`, `only numbers can be added`},
		{`filter([1], true)[0] + topic == 2`, `only numbers can be added`},
		{`first(context.clusters) == ""`, `there is no function "first"`},
		{`$env.topic == "x"`, `$env is not supported`},
		{`(budget).rounds == 1`, `there is no "budget"`},
		{`context["(budget)"] == 1`, `context has no "(budget)"`},
		{`context[topic] == "x"`, `the name of a member must be literal`},
		{`topic in context`, `in requires a list`},
		{`{"a": topic}.a == "x"`, `maps are not supported`},
		{`topic == "` + strings.Repeat("x", 5000) + `"`, `is longer than 4096 bytes`},
		{strings.Repeat("1+", 1500) + `1 == 1`, `nodes`},
		{"topic == \"\xff\"", `is not UTF-8 text`},
	} {
		compiled, err := condition.Compile(c.text)
		var e *condition.Error
		if !errors.As(err, &e) || compiled != nil {
			t.Errorf("%.80s: %v", c.text, err)
			continue
		}
		if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") ||
			strings.Contains(err.Error(), "string") {
			t.Errorf("%.80s\n got %v\nwant %s", c.text, err, c.want)
		}
	}
}

// manyContainers returns an envelope with n different containers.
func manyContainers(n int) *relay.Envelope {
	e := &relay.Envelope{Topic: "job.created"}
	for i := range n {
		e.Context.Containers = append(e.Context.Containers, fmt.Sprint(i))
	}
	return e
}

// One pass over a long list succeeds. Longer evaluations soon end with an error.
func TestCondition_LimitsLoops(t *testing.T) {
	once, err := condition.Compile(`all(context.containers, # != "x")`)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := once(manyContainers(10_000)); !got || err != nil {
		t.Errorf("one loop: got %v, %v", got, err)
	}
	if _, err := once(manyContainers(10_001)); err == nil {
		t.Error("a longer loop: want an error")
	}
	for _, text := range []string{
		`any(context.containers, let c = #; any(context.containers, let d = #; any(context.containers, # == c + d)))`,
		`all(context.containers, all(context.containers, none(context.containers, # == "x")))`,
		`count(context.containers, count(context.containers, # == "x") > 0) > 0`,
		`len(filter(context.containers, len(filter(context.containers, # == "x")) > 0)) > 0`,
		`len(context.containers) > 1 ? one(context.containers, one(context.containers, # == "x")) : true`,
	} {
		text = strings.ReplaceAll(text, "c + d", "c")
		greedy, err := condition.Compile(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		_, err = greedy(manyContainers(20_000))
		if err == nil && !strings.HasPrefix(text, "any(") {
			t.Errorf("%s: want an error", text)
		}
		if err != nil && !strings.Contains(err.Error(), "limit of ") {
			t.Errorf("%s: %v", text, err)
		}
		if got, err := greedy(manyContainers(1)); err != nil {
			t.Errorf("%s: the next evaluation has no new budget: %v, %v", text, got, err)
		}
	}
}

// The time of an evaluation does not grow with the square of the size of the event.
func TestCondition_LimitsSearches(t *testing.T) {
	for text, isSearch := range map[string]bool{
		`any(context.containers, # in context.clusters)`:                                          true,
		`any(context.containers, object.error contains #)`:                                        true,
		`let e = object.error; any(context.containers, e contains #)`:                             true,
		`none(context.containers, lower(object.error) == #)`:                                      true,
		`all(context.containers, len(#) > len(object.error))`:                                     true,
		`any(context.containers, context.clusters != context.clusters)`:                           true,
		`any(context.containers, any(context.clusters, # == "x"))`:                                true,
		`any(context.containers, # == object.id and # contains "x")`:                              false,
		`any(context.containers, # in ["a", "b"] and object.state == "x")`:                        false,
		`any(context.containers, lower(#) == "x") or any(context.containers, # startsWith topic)`: false,
	} {
		search, err := condition.Compile(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		_, err = search(manyContainers(2000))
		if (err != nil) != isSearch || err != nil && !strings.Contains(err.Error(), "limit of 1 MiB") {
			t.Errorf("%s: got %v for a large event", text, err)
		}
		if _, err := search(manyContainers(200)); err != nil {
			t.Errorf("%s: got %v for an ordinary event", text, err)
		}
	}
}

// An error at run time has a position, but no data of the notification.
func TestCondition_RuntimeErrors(t *testing.T) {
	for text, want := range map[string]string{
		`topic != "" and context.containers[0] == "c1"`: "column 35 of the expression: failed: index out of range",
		`int(topic) == 3`:                "failed: ",
		`3 % len(context.clusters) == 1`: "failed: integer divide by zero",
	} {
		condition, err := condition.Compile(text)
		if err != nil {
			t.Fatal(err)
		}
		got, err := condition(&relay.Envelope{Topic: "secret"})
		if err == nil || got || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
}
