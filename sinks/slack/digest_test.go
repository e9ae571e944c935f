package slack

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

// gather returns a digest of count notifications that lists the first most ones, one per second from begin. make
// returns the topic and object of each.
func gather(
	count, most int, begin time.Time, by map[string]string, kind func(i int) (topic, object string),
) relay.Delivery {
	d := relay.Delivery{ID: "6560c2a0fedcba9876543210", Attempt: 1, Digest: &relay.Digest{
		Count: count, First: begin, Last: begin.Add(time.Duration(count-1) * time.Second), Shared: by,
		Topics: map[string]int{},
	}}
	for i := range count {
		topic, object := kind(i)
		d.Digest.Topics[topic]++
		if i >= most {
			continue
		}
		at := begin.Add(time.Duration(i) * time.Second)
		clusters := "production"
		if by["cluster"] != "" {
			clusters = strings.ReplaceAll(by["cluster"], ", ", `","`)
		}
		n := note(fmt.Sprintf("%08x%016x", at.Unix(), i), topic, object,
			fmt.Sprintf(`{"hub_id":"hub1","account_id":"acc1","clusters":["%s"],"containers":["c%d"]}`, clusters, i%3))
		d.Notifications = append(d.Notifications, n)
	}
	return d
}

// dead returns a notice about count dead letters of the sink billing with a reason.
func dead(reason string, count int) relay.Notification {
	return note(fmt.Sprintf("6b00c62b0000000000000%03x", count), relay.TopicDeadLetterCreated,
		fmt.Sprintf(`{"id":"6b00c6200000000000000%03x","state":%q,"error":"post to hooks.example.com: status 400",`+
			`"sink":"billing","topic":"billing.credit.error","attempts":1,"count":%d}`, count, reason, count),
		`{"hub_id":"hub1","account_id":"","environments":[],"dns_zones":[],"clusters":[],"containers":[]}`)
}

// deaths is a digest of count notices about dead letters that lists these.
func deaths(count int, listed ...relay.Notification) relay.Delivery {
	return relay.Delivery{ID: "6560c2a0fedcba9876543210", Attempt: 1, Notifications: listed, Digest: &relay.Digest{
		Count: count, First: evening, Last: evening, Topics: map[string]int{relay.TopicDeadLetterCreated: count},
	}}
}

var evening = time.Date(2026, 11, 20, 22, 14, 3, 0, time.UTC)

func digestGoldens() map[string]relay.Delivery {
	errors := func(i int) (string, string) {
		return "container.instance.error",
			fmt.Sprintf(`{"id":"inst-%d","state":"failed","error":"pull: image app:1.%d not found"}`, i%7, i)
	}
	mixed := func(i int) (string, string) {
		switch {
		case i%9 == 4:
			return "container.instance.error",
				fmt.Sprintf(`{"id":"inst-%d","state":"","error":"exited with code %d"}`, i, i)
		case i%9 == 7:
			return "container.instance.health.status.changed",
				fmt.Sprintf(`{"id":"inst-%d","state":"unhealthy","error":""}`, i)
		case i%2 == 0:
			return "container.instances.reconfigured", fmt.Sprintf(`{"id":"inst-%d","state":"","error":""}`, i)
		}
		return "container.instance.state.changed",
			fmt.Sprintf(`{"id":"inst-%d","state":"running","previous_state":"starting","error":""}`, i)
	}
	huge := func(i int) (string, string) {
		text := quoted(strings.Repeat(fmt.Sprintf("<&%d> 👩\u200d👧 ", i), 60))
		return fmt.Sprintf("acme.%s.%d", strings.Repeat("x", 200), i),
			`{"id":` + text + `,"state":` + text + `,"previous_state":` + text + `,"error":` + text + `}`
	}
	created := func(i int) (string, string) {
		return "dns.zone.created", fmt.Sprintf(`{"id":"zone-%d","state":"","error":""}`, i)
	}
	one := one(note("0123456789abcdef01234567", "container.instance.error",
		`{"id":"inst-7","state":"failed","error":"oops"}`, fullContext))
	one.ID, one.Digest = "6560c2a0fedcba9876543210", &relay.Digest{Count: 1}
	death := one
	death.Notifications = []relay.Notification{dead("permanent", 3)}
	return map[string]relay.Delivery{
		"digest_one_dead": death,
		"digest_dead":     deaths(2, dead("permanent", 11), dead("expired", 1)),
		"digest": gather(57, 20, evening,
			map[string]string{"topic": "container.instance.error", "hub": "hub1"}, errors),
		"digest_trouble": gather(40, 20, evening, map[string]string{"cluster": "production"}, mixed),
		"digest_huge":    gather(5000, 60, evening, nil, huge),
		"digest_midnight": gather(4, 20, time.Date(2026, 11, 20, 23, 59, 58, 0, time.UTC),
			map[string]string{"hub": "hub1", "cluster": "eu, us"}, created),
		"digest_one": one,
	}
}

// A person at night sees the worst first, how much it is, and that nothing is left out unsaid.
func TestDigestHeaders(t *testing.T) {
	t.Parallel()
	d := func(count int, topics map[string]int, by map[string]string, listed ...relay.Notification) relay.Delivery {
		return relay.Delivery{
			ID: "d1", Notifications: listed, Digest: &relay.Digest{Count: count, Topics: topics, Shared: by},
		}
	}
	sick := note("n1", "container.instance.health.status.changed", `{"id":"i1","state":"unhealthy","error":""}`,
		emptyContext)
	well := note("n2", "container.instance.health.status.changed", `{"id":"i1","state":"healthy","error":""}`,
		emptyContext)
	oops := note("n3", "container.error", `{"id":"c1","state":"","error":"oops"}`, emptyContext)
	for _, c := range []struct {
		d    relay.Delivery
		want string
	}{
		{
			d(2, map[string]int{sick.Topic: 2}, nil, well, sick),
			"1 problem among 2 × The health check of an instance turned healthy or unhealthy",
		},
		{
			d(9, map[string]int{sick.Topic: 9}, nil, sick, sick),
			"At least 2 problems among 9 × The health check of an instance turned healthy or unhealthy",
		},
		{
			d(9, map[string]int{sick.Topic: 9}, nil, well),
			"9 × The health check of an instance turned healthy or unhealthy",
		},
		{d(9, map[string]int{oops.Topic: 9}, nil, oops), "9 × Something went wrong with a container as a whole"},
		{d(9, map[string]int{oops.Topic: 8, "acme.x": 1}, nil, oops), "At least 8 problems among 9 events"},
		{d(2, map[string]int{oops.Topic: 1, well.Topic: 1}, nil, well, oops), "1 problem among 2 events"},
		{d(2, map[string]int{oops.Topic: 1, sick.Topic: 1}, nil, sick, oops), "2 problems of 2 topics"},
		{d(9, map[string]int{"acme.x": 5, "acme.y": 4}, nil, well), "9 events of 2 topics"},
		{d(9, nil, nil, well, oops), "At least 1 problem among 9 events"},
		{d(9, nil, map[string]string{"topic": "acme.x"}, well), "9 × acme.x"},
		{d(1, nil, nil, well), "An instance's health check says healthy"},
		{d(0, nil, nil, well), "An instance's health check says healthy"},
		{d(5, nil, nil), "5 events of 0 topics"},
	} {
		m := newRenderer().renderDelivery(c.d)
		checkMessage(t, m)
		if got := texts(m.Blocks.BlockSet)[0].Text; got != c.want {
			t.Errorf("header %q, want %q", got, c.want)
		}
		if !strings.HasPrefix(m.Text, c.want) {
			t.Errorf("a phone shows %q, want %q first", m.Text, c.want)
		}
	}
}

// A notice about dead letters counts with its number, in a digest and in a batch.
func TestDeathsAreAddedUp(t *testing.T) {
	t.Parallel()
	other := dead("permanent", 4)
	other.Data = []byte(strings.ReplaceAll(string(other.Data), "billing", "audit"))
	disabled := note("n9", relay.TopicSinkDisabled, `{"id":"gone","state":"disabled","error":"status 410"}`,
		emptyContext)
	batch := relay.Delivery{ID: "d1", Notifications: []relay.Notification{dead("permanent", 11), dead("expired", 12)}}
	mixed := deaths(2, dead("permanent", 11), dead("expired", 11))
	mixed.Notifications = append(mixed.Notifications, disabled)
	mixed.Digest.Count, mixed.Digest.Topics[disabled.Topic] = 3, 1
	for name, c := range map[string]struct {
		d    relay.Delivery
		want []string // the start of the text for phones, and other texts of the message
	}{
		"one sink": {deaths(2, dead("permanent", 11), dead("expired", 11)), []string{
			"22 deliveries were given up and became dead letters: billing, among them: 11 of billing · post to",
			"*11 deliveries were given up and became dead letters*", "Sink `billing`",
		}},
		"no digest": {batch, []string{
			"23 deliveries were given up and became dead letters: billing, ",
			"*12 deliveries were", "*11 deliveries were",
		}},
		"two sinks": {deaths(2, dead("permanent", 1), other), []string{
			"5 deliveries were given up and became dead letters, among them: 1 of billing",
			"*A delivery was given up and became a dead letter*", "*4 deliveries were",
		}},
		"not all listed": {
			deaths(5, dead("permanent", 11)),
			[]string{"At least 15 deliveries were given up and became dead letters, among them: "},
		},
		"mixed": {mixed, []string{
			"3 problems of 2 topics, among them: 11 deliveries were given up and became dead letters: billing · ",
			"2 × `hubrelay.deadletter.created` · 22 deliveries were", "*11 deliveries were", "*A sink was disabled",
		}},
		"one of each": {relay.Delivery{
			ID: "d1", Notifications: []relay.Notification{dead("permanent", 1), disabled},
		}, []string{
			"2 problems of 2 topics", "1 × `hubrelay.deadletter.created`\n",
		}},
		"two disabled": {relay.Delivery{ID: "d1", Notifications: []relay.Notification{disabled, disabled}}, []string{
			"2 × A sink was disabled and keeps its backlog, among them: gone · status 410",
		}},
	} {
		m := newRenderer().renderDelivery(c.d)
		checkMessage(t, m)
		if !strings.HasPrefix(m.Text, c.want[0]) {
			t.Errorf("%s: a phone shows %q, want %q first", name, m.Text, c.want[0])
		}
		var all strings.Builder
		for _, o := range texts(m.Attachments[0].Blocks.BlockSet) {
			all.WriteString(o.Text + "\n")
		}
		for _, o := range texts(m.Blocks.BlockSet) {
			all.WriteString(o.Text + "\n")
		}
		for _, want := range c.want[1:] {
			if !strings.Contains(all.String(), want) {
				t.Errorf("%s: %q is not in\n%s", name, want, all.String())
			}
		}
	}
}

// Notifications that the digest counted and the message does not list are counted, whether max or a limit omitted them.
func TestDigestCountsTheRest(t *testing.T) {
	t.Parallel()
	for name, d := range digestGoldens() {
		m := newRenderer().renderDelivery(d)
		text, _ := json.Marshal(m)
		shown := 0
		for _, n := range d.Notifications {
			if strings.Contains(string(text), n.ID) {
				shown++
			}
		}
		more := d.Digest.Count - shown
		if got := strings.Contains(string(text), fmt.Sprintf("*and %d more*", more)); got != (more > 0) || shown == 0 {
			t.Errorf("%s: %d of %d shown, the rest counted: %v", name, shown, d.Digest.Count, got)
		}
		if d.Digest.Count > 1 && more > 0 &&
			!strings.Contains(string(text), fmt.Sprintf("%d of %d listed", shown, d.Digest.Count)) {
			t.Errorf("%s: the foot does not say that %d are listed", name, shown)
		}
	}
}

// Numbers that do not fit together, which no digest of ours has, break no limit.
func TestDigestOfNonsense(t *testing.T) {
	t.Parallel()
	base := many(3)
	for _, g := range []relay.Digest{
		{},
		{Count: -4, Topics: map[string]int{"container.error": -1, "": 0}},
		{Count: math.MaxInt, Topics: map[string]int{"a": math.MaxInt / 2, "b": 1, "": 3}, First: evening},
		{
			Count: 4, First: evening, Last: evening.Add(-time.Hour),
			Shared: map[string]string{"topic": "\x00", "hub": "", "cluster": hostile, "x": hostile},
		},
		{Count: 4, Topics: map[string]int{"container.error": 900}},
	} {
		for n := range len(base.Notifications) + 1 {
			d := base
			d.Digest, d.Notifications = &g, base.Notifications[:n]
			checkMessage(t, newRenderer().renderDelivery(d))
		}
	}
}
