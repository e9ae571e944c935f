package slack

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/internal/httpclient"
	"github.com/hubrelay/hubrelay/internal/netguard"
	"github.com/hubrelay/hubrelay/relay"
)

const (
	defaultAPI = "https://slack.com/api"
	defaultTTL = 24 * time.Hour

	threadAll       = "all"
	threadContainer = "container"
	threadJob       = "job"
	threadNone      = "none"
)

// Route selects the channel of notifications that match both lists.
type Route struct {
	Topics  []string `koanf:"topics" doc:"Patterns of topics; empty for all."`
	Hubs    []string `koanf:"hubs" doc:"Hubs; empty for all."`
	Channel string   `koanf:"channel" doc:"Default channel of an app, as ID (C0123456789) or #name."`
}

func (c *Config) isApp() bool { return c.Token != "" || c.TokenFile != "" }

// checkApp returns the problems of the settings of an app.
func (c *Config) checkApp(g *netguard.Guard) error {
	var errs []error
	bad := func(field, problem string) { errs = append(errs, &relay.FieldError{Field: field, Problem: problem}) }
	if !c.isApp() {
		if c.Channel != "" {
			bad(
				"channel", "has no effect with an incoming webhook, which belongs to one channel: set the token of "+
					"an app, or remove it",
			)
		}
		if len(c.Channels) > 0 {
			bad(
				"channels", "has no effect with an incoming webhook, which belongs to one channel: set the token of "+
					"an app, or remove it",
			)
		}
		return errors.Join(errs...)
	}
	errs = append(errs, c.tokenSetting().Check())
	if c.Channel == "" {
		bad("channel", "is missing: the token requires a channel, as ID (C0123456789) or #name")
	} else if !isChannel(c.Channel) {
		bad("channel", "is not a channel: set its ID (C0123456789, at the end of its details in Slack) or #name")
	}
	for i, r := range c.Channels {
		at := "channels." + strconv.Itoa(i)
		if !isChannel(r.Channel) {
			bad(at+".channel", "is not a channel: set its ID (C0123456789) or #name")
		}
		if _, err := relay.ParsePatterns(r.Topics); err != nil {
			bad(at+".topics", err.Error())
		}
		if len(r.Topics)+len(r.Hubs) == 0 {
			bad(at, "matches everything: set topics or hubs, or use it as the channel of the sink")
		}
	}
	if !slices.Contains([]string{"", threadAll, threadContainer, threadJob, threadNone}, c.Thread) {
		bad("thread", "is unknown: choose all, container, job or none")
	}
	if c.ThreadTTL != 0 && (c.ThreadTTL < time.Minute || c.ThreadTTL > 30*24*time.Hour) {
		bad("thread_ttl", "is out of range: choose 1m to 720h")
	}
	if g != nil {
		if _, err := parseAPI(c.APIURL, g); err != nil {
			bad("api_url", err.Error())
		}
	}
	return errors.Join(errs...)
}

func (c *Config) tokenSetting() httpclient.Setting[string] {
	return httpclient.Setting[string]{Key: "token", Text: c.Token, File: c.TokenFile, Parse: parseToken}
}

// parseToken checks a bot token. Its errors do not contain it.
func parseToken(text []byte) (string, error) {
	token := strings.TrimSpace(string(text))
	switch {
	case token == "":
		return "", errors.New("contains no token")
	case !strings.HasPrefix(token, "xox") || len(token) < 10:
		return "", errors.New(
			"is not a token of Slack: the bot token of an app starts with xoxb- and has at least ten characters " +
				"(\"OAuth & Permissions\" in the settings of the app)",
		)
	}
	for _, c := range []byte(token) {
		if c <= ' ' || c >= 0x7f {
			return "", errors.New("contains white space or other characters that a token cannot contain")
		}
	}
	return token, nil
}

func isChannel(s string) bool {
	return regexp.MustCompile(`^(#[^\s,#@]{1,80}|[CGD][A-Z0-9]{5,})$`).MatchString(s)
}

// parseAPI returns the base URL of the methods.
func parseAPI(text string, g *netguard.Guard) (*httpclient.Target, error) {
	if text == "" {
		text = defaultAPI
	}
	t, err := httpclient.ParseTarget(strings.TrimRight(text, "/"), g)
	if err != nil {
		return nil, err
	}
	if u := t.URL(); u.User != nil || u.RawQuery != "" {
		return nil, errors.New("must not contain a user, password or query: use https://host/path")
	}
	return t, nil
}

// routeTable contains the routes of an app.
type routeTable struct {
	rules          []rule
	defaultChannel string
}

type rule struct {
	filter  relay.Filter
	channel string
}

func (c *Config) buildRoutes() (*routeTable, error) {
	out := &routeTable{defaultChannel: c.Channel}
	for _, r := range c.Channels {
		patterns, err := relay.ParsePatterns(r.Topics)
		if err != nil {
			return nil, err
		}
		out.rules = append(out.rules, rule{relay.Filter{Topics: patterns, Hubs: r.Hubs}, r.Channel})
	}
	return out, nil
}

// channelFor returns the channel of a delivery. For a digest it is the common channel of all listed notifications,
// otherwise the channel of the sink.
func (r *routeTable) channelFor(d relay.Delivery) string {
	channel := ""
	for _, n := range d.Notifications {
		one := r.defaultChannel
		for i := range r.rules {
			if r.rules[i].filter.Match(n) {
				one = r.rules[i].channel
				break
			}
		}
		if channel != "" && channel != one {
			return r.defaultChannel
		}
		channel = one
	}
	if channel == "" {
		return r.defaultChannel
	}
	return channel
}

func (c *Config) openApp(s relay.SinkSettings, g *netguard.Guard, r *renderer, now func() time.Time) (*appSink, error) {
	target, err := parseAPI(c.APIURL, g)
	if err != nil {
		return nil, fmt.Errorf("api_url %w", err)
	}
	a := &appSink{
		transport: httpclient.NewTransport(g, nil), api: target, now: now, log: s.Log, memory: s.State,
		countRequests: s.CountRequests,
		thread:        c.Thread, ttl: c.ThreadTTL, renderer: r,
		header: http.Header{"Content-Type": {"application/json; charset=utf-8"}, "User-Agent": {s.UserAgent}},
	}
	if a.countRequests == nil {
		a.countRequests = func(int) {}
	}
	if s.UserAgent == "" {
		a.header.Set("User-Agent", "hubrelay")
	}
	if a.thread == "" {
		a.thread = threadAll
	}
	if a.ttl == 0 {
		a.ttl = defaultTTL
	}
	if a.routes, err = c.buildRoutes(); err != nil {
		return nil, err
	}
	if a.token, err = c.tokenSetting().Open(s.Log, now); err != nil {
		return nil, err
	}
	if a.api.URL().Scheme == "http" {
		s.Log.Warn("api_url uses http, which exposes the token")
	}
	return a, nil
}
