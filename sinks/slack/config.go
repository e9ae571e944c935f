package slack

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/internal/httpclient"
	"github.com/hubrelay/hubrelay/internal/netguard"
	"github.com/hubrelay/hubrelay/relay"
)

// Config is the configuration of one incoming webhook or one app. Exactly one of URL, URLFile, Token and TokenFile is
// set.
type Config struct {
	// URL is the address of the incoming webhook. It allows posting, so it is a secret.
	URL string `koanf:"url" secret:"true" doc:"Incoming webhook, https://hooks.slack.com/services/…; a credential."`
	// URLFile contains the address. It is read again within two seconds after it changes.
	URLFile string `koanf:"url_file" doc:"File with the url, read again when it changes."`
	// Token is the bot token of an app, which can post to channels and threads.
	Token string `koanf:"token" secret:"true" doc:"Bot token of an app (xoxb-…) with the scope chat:write."`
	// TokenFile contains the token. It is read again within two seconds after it changes.
	TokenFile string `koanf:"token_file" doc:"File with the token, read again when it changes."`
	// APIURL is the base URL of the methods. GovSlack has https://slack-gov.com/api.
	APIURL string `koanf:"api_url" doc:"Base URL of the methods; for GovSlack https://slack-gov.com/api."`
	// Channel is the channel for messages that match no rule in Channels.
	Channel string `koanf:"channel" doc:"Default channel of an app, as ID (C0123456789) or #name."`
	// Channels are rules for other channels. The first match applies.
	Channels []Route `koanf:"channels" doc:"Rules for other channels; the first match applies."`
	// Thread selects the objects with a thread: containers, jobs, all of both, or none.
	Thread string `koanf:"thread" enum:"all,container,job,none" doc:"Objects with a thread."`
	// ThreadTTL is the time after which a thread without new messages ends.
	ThreadTTL time.Duration `koanf:"thread_ttl" doc:"Time after which a thread without new messages ends, 1m to 720h."`
	// The templates are rendered by internal/tmpl. Each is inline or in a file.
	TextTemplate       string `koanf:"text_template" doc:"Message as a Go template (mrkdwn)."`
	TextTemplateFile   string `koanf:"text_template_file" doc:"File with the text_template."`
	BlocksTemplate     string `koanf:"blocks_template" doc:"Blocks as a Go template (a JSON array)."`
	BlocksTemplateFile string `koanf:"blocks_template_file" doc:"File with the blocks_template."`
	LinkTemplate       string `koanf:"link_template" doc:"URL of a message about one event."`
	LinkTemplateFile   string `koanf:"link_template_file" doc:"File with the link_template."`
	// AllowCIDRs are networks that may be dialed although they are not public.
	AllowCIDRs []string `koanf:"allow_cidrs" doc:"Networks that may be dialed although they are not public."`
}

// Check implements [relay.Config].
func (c *Config) Check(ctx context.Context, env relay.CheckEnv) relay.Report {
	err := c.validate()
	if err == nil && env.Samples != nil {
		err = c.validateSamples(ctx, env.Name, env.Samples())
	}
	return relay.NewReport(err)
}

// validate joins a [relay.FieldError] for each invalid value. It reads the file, but does not query DNS.
func (c *Config) validate() error {
	g, err := netguard.New(c.AllowCIDRs)
	return errors.Join(err, c.checkAddress(g), c.checkApp(g), c.templateSources().Check())
}

// checkAddress returns the problems of url and url_file.
func (c *Config) checkAddress(g *netguard.Guard) error {
	switch {
	case c.URL == "" && c.URLFile == "" && c.isApp():
		return nil
	case c.URL == "" && c.URLFile == "":
		return &relay.FieldError{
			Field: "url", Problem: "is missing: set the URL of an incoming webhook here or in " +
				"url_file, or the token and channel of an app",
		}
	case c.isApp():
		return &relay.FieldError{
			Field: "token", Problem: "conflicts with the URL of an incoming webhook: set only one of them",
		}
	}
	return c.urlSetting(g).Check()
}

// urlSetting returns the setting of the incoming webhook's URL. A nil guard accepts every address.
func (c *Config) urlSetting(g *netguard.Guard) httpclient.Setting[*httpclient.Target] {
	return httpclient.Setting[*httpclient.Target]{
		Key: "url", Text: c.URL, File: c.URLFile,
		Parse: func(text []byte) (*httpclient.Target, error) {
			if g == nil {
				return nil, nil
			}
			return parseTarget(strings.TrimSpace(string(text)), g)
		},
	}
}

// parseTarget checks the URL of an incoming webhook. Its errors do not contain the URL.
func parseTarget(text string, g *netguard.Guard) (*httpclient.Target, error) {
	t, err := httpclient.ParseTarget(text, g)
	if err != nil {
		return nil, err
	}
	u := t.URL()
	switch {
	case u.User != nil:
		return nil, errors.New("must not contain a user or password: the secret of an incoming webhook is its path")
	case strings.EqualFold(u.Hostname(), "hooks.slack.com") &&
		(u.Scheme != "https" || !strings.HasPrefix(u.Path, "/services/")):
		return nil, errors.New(
			"is not an incoming webhook of Slack: its URL starts with https://hooks.slack.com/services/",
		)
	}
	return t, nil
}
