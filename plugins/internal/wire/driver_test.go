package wire

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/plugins/proto/driver/v1"
	"github.com/hubrelay/hubrelay/relay"
)

func TestDriver_ConvertsAllFields(t *testing.T) {
	var next int
	var m relay.Migration
	fill(t, reflect.ValueOf(&m).Elem(), &next)
	request := FromMigration(m)
	unset(t, request.ProtoReflect())
	if got := ToMigration(over(t, request, &driverv1.MigrateRequest{})); !reflect.DeepEqual(got, m) {
		t.Errorf("got %+v\nwant %+v", got, m)
	}
	var servers []relay.Server
	fill(t, reflect.ValueOf(&servers).Elem(), &next)
	configure := &driverv1.ConfigureRequest{Config: []byte("{}"), Servers: FromServers(servers)}
	unset(t, configure.ProtoReflect())
	if got := ToServers(over(t, configure, &driverv1.ConfigureRequest{}).GetServers()); !reflect.DeepEqual(got,
		servers) {
		t.Errorf("got %+v\nwant %+v", got, servers)
	}
	var d relay.DriverDescription
	fill(t, reflect.ValueOf(&d).Elem(), &next)
	d.Steps[0].ID, d.Steps[1].ID = "stop", "copy"
	described := FromDescription(d)
	unset(t, described.ProtoReflect())
	if got, err := ToDescription(over(t, described, &driverv1.DescribeResponse{})); err != nil ||
		!reflect.DeepEqual(got, d) {
		t.Errorf("got %+v (%v)\nwant %+v", got, err, d)
	}
}

// A report without a time has none on the other side either.
func TestProgress_WithoutTime(t *testing.T) {
	if got := ToProgress(over(t, FromProgress(relay.Progress{Step: "copy"}),
		&driverv1.Progress{})); !got.Time.IsZero() {
		t.Errorf("no time came back as %s", got.Time)
	}
}

func TestResult_RoundTrip(t *testing.T) {
	running := t.Context()
	stopped, stop := context.WithCancel(running)
	stop()
	cause := errors.New("oh no")
	for name, c := range map[string]struct {
		ctx  context.Context
		err  error
		want error // nil for one with the text below
		text string
	}{
		"failed":               {running, cause, nil, "oh no"},
		"failed while stopped": {stopped, cause, nil, "oh no"},
		"its own time was up":  {running, fmt.Errorf("dial: %w", context.Canceled), nil, "dial: context canceled"},
		"superseded":           {running, fmt.Errorf("at b: %w", relay.ErrSuperseded), relay.ErrSuperseded, ""},
		"stopped":              {stopped, fmt.Errorf("copy: %w", context.Canceled), ErrCancelled, ""},
		"no text":              {running, errors.New(""), nil, "the plugin gave no reason"},
		"broken text":          {running, errors.New("a\xffb"), nil, "a�b"},
	} {
		got := ToResult(over(t, FromResult(c.ctx, c.err), &driverv1.Result{}))
		if c.want != nil && !errors.Is(got, c.want) || c.want == nil && (got == nil || got.Error() != c.text) ||
			relay.IsIndeterminate(got) {
			t.Errorf("%s: %v", name, got)
		}
	}
	if err := ToResult(over(t, FromResult(running, nil), &driverv1.Result{})); err != nil {
		t.Errorf("moved is %v", err)
	}
	for _, ctx := range []context.Context{running, stopped} {
		unsettled := relay.Indeterminate(fmt.Errorf("a is away: %w", context.Canceled))
		got := ToResult(over(t, FromResult(ctx, fmt.Errorf("migrate: %w", unsettled)), &driverv1.Result{}))
		if !relay.IsIndeterminate(got) || got.Error() != "migrate: a is away: context canceled" {
			t.Errorf("unsettled: %v", got)
		}
	}
}

// A plugin may send anything.
func TestToResult_AcceptsAnyInput(t *testing.T) {
	for _, m := range []*driverv1.Result{nil, {}, {Outcome: 99, Error: "x"}} {
		if err := ToResult(m); !relay.IsIndeterminate(err) {
			t.Errorf("%v is %v", m, err)
		}
	}
	if text := ToResult(&driverv1.Result{
		Outcome: driverv1.Outcome_OUTCOME_FAILED, Error: strings.Repeat("é", maxText),
	}).Error(); len(text) > maxText {
		t.Errorf("%d bytes", len(text))
	}
}

func TestToDescription(t *testing.T) {
	step := func(id, caption string) relay.MigrationStep { return relay.MigrationStep{ID: id, Caption: caption} }
	for name, c := range map[string]struct {
		d    relay.DriverDescription
		want string
	}{
		"good": {relay.DriverDescription{
			Name: "ssh-2", Steps: []relay.MigrationStep{step("stop", "Stop"), step("copy", "Copy")},
		}, ""},
		"no name": {relay.DriverDescription{Steps: []relay.MigrationStep{step("stop", "Stop")}}, `its name ""`},
		"version": {relay.DriverDescription{
			Name: "x", Version: "\xff", Steps: []relay.MigrationStep{step("stop", "Stop")},
		}, "its version"},
		"no steps": {relay.DriverDescription{Name: "x"}, "it has 0 steps"},
		"upper case": {relay.DriverDescription{
			Name: "x", Steps: []relay.MigrationStep{step("Stop", "Stop")},
		}, `the step "Stop" must have an id`},
		"twice": {relay.DriverDescription{
			Name: "x", Steps: []relay.MigrationStep{step("stop", "Stop"), step("stop", "Stop")},
		}, `two steps have the id "stop"`},
		"no caption": {
			relay.DriverDescription{Name: "x", Steps: []relay.MigrationStep{step("stop", " ")}},
			`the step "stop" must have a caption`,
		},
	} {
		_, err := ToDescription(FromDescription(c.d))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
