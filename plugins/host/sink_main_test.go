package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/plugins/sdk"
	"github.com/hubrelay/hubrelay/relay"
)

type settings struct {
	Report string `json:"report"`
	Level  int    `json:"level"`
}

func (s *settings) validate(context.Context) error {
	switch s.Level {
	case -2:
		return errors.Join(&relay.FieldError{Field: "level", Problem: "is -2: choose 0 or more"},
			errors.New("levels are bad"))
	case -3:
		panic("a secret")
	}
	return nil
}

func (s *settings) explain(d relay.Delivery) (relay.Preview, error) {
	n := d.Notifications[0]
	if n.Topic == "reject" {
		return relay.Preview{}, errors.New("never this")
	}
	return relay.Preview{
		Method: "write", Target: d.ID, Headers: []relay.Header{
			{Name: "attempt", Value: fmt.Sprint(d.Attempt)},
		}, Payload: n.Data,
		Followups: []relay.Preview{{Method: "sync", Target: d.ID}},
	}, nil
}

// runSDK does what the topic says.
func runSDK() error {
	var c settings
	var mu sync.Mutex
	append1 := func(line string) error {
		if c.Report == "" {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		f, err := os.OpenFile(c.Report, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(f, line)
		return errors.Join(err, f.Close())
	}
	return sdk.ServeDeliveries(func(ctx context.Context, d relay.Delivery) error {
		topic := d.Notifications[0].Topic
		if err := append1(fmt.Sprintf("%s %d %s", d.ID, d.Attempt, topic)); err != nil {
			return err
		}
		return behave(ctx, topic)
	}, sdk.Config(&c), sdk.Version("1.2.3"), sdk.OnValidate(c.validate), sdk.Explain(c.explain),
		sdk.OnStart(func(context.Context) error {
			if c.Level == 7 {
				return append1("started")
			}
			return nil
		}), sdk.OnStop(func(context.Context) error { return append1("stopped") }))
}

func behave(ctx context.Context, topic string) error {
	switch topic {
	case "fail":
		return &relay.ResponseError{Status: 503, Body: "later"}
	case "throttle":
		return relay.RetryAfter(errors.New("slowly"), 2*time.Minute)
	case "reject":
		return relay.Permanent(errors.New("bad"))
	case "leave":
		return relay.Gone(errors.New("go away"))
	case "hang":
		<-ctx.Done()
		return ctx.Err()
	case "slow":
		time.Sleep(3 * time.Second)
	case "deaf":
		time.Sleep(time.Minute)
	case "panic":
		panic("a secret")
	case "die":
		os.Exit(4)
	case "crash":
		go func() { panic("outside of the handler") }()
		<-ctx.Done()
	case "log":
		slog.Warn("from the plugin", "answer", 42, "sink", "forged")
		fmt.Println("on stdout")
		fmt.Fprintln(os.Stderr, "on stderr "+strings.Repeat("x", 1000)+os.Getenv("SECRET"))
	case "flood":
		for i := range 20_000 {
			fmt.Fprintln(os.Stderr, strings.Repeat("x", 100), i)
		}
		slog.Info("long", "text", strings.Repeat("y", 100_000))
	case "grow":
		var all [][]byte
		for range 400 {
			all = append(all, bytes.Repeat([]byte{1}, 16<<20))
		}
		runtime.KeepAlive(all)
	}
	return nil
}
