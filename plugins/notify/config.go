package notify

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/hubrelay/hubrelay/internal/filewatch"
	"github.com/hubrelay/hubrelay/internal/netguard"
	"github.com/hubrelay/hubrelay/internal/suggest"
	"github.com/hubrelay/hubrelay/relay"
)

// Config is the setting `config` of the sink.
type Config struct {
	// URLs are destinations. Each is a secret. URLFiles are files with one destination each.
	URLs     []string `json:"urls"`
	URLFiles []string `json:"url_files"`
	// AllowCIDRs are networks whose addresses may be dialed although they are not public.
	AllowCIDRs []string `json:"allow_cidrs"`
}

// service describes a service of shoutrrr.
type service struct {
	hasTitle bool // a message has a separate title
	markup   bool // an @ in the text notifies people, and links can have another text
	maxBytes int  // limit of a text, less than that of the service by at least an ellipsis
}

func knownServices() map[string]service {
	return map[string]service{
		"discord":    {hasTitle: true, markup: true, maxBytes: 1900},
		"googlechat": {markup: true, maxBytes: 4000},
		"gotify":     {hasTitle: true, maxBytes: 8000},
		"matrix":     {markup: true, maxBytes: 8000},
		"mattermost": {markup: true, maxBytes: 8000},
		"ntfy":       {hasTitle: true, maxBytes: 3900},
		"pushbullet": {hasTitle: true, maxBytes: 4000},
		"pushover":   {hasTitle: true, maxBytes: 1000},
		"rocketchat": {markup: true, maxBytes: 4000},
		"teams":      {hasTitle: true, markup: true, maxBytes: 8000},
		"telegram":   {markup: true, maxBytes: 3900},
		"zulip":      {markup: true, maxBytes: 8000},
	}
}

// betterSink returns the sink of the daemon that replaces a service of shoutrrr, or "".
func betterSink(scheme string) string {
	switch scheme {
	case "smtp":
		return "a sink of type email"
	case "generic":
		return "a sink of type webhook"
	case "slack", "pagerduty":
		return "a sink of type " + scheme
	case "logger":
		return "a sink of type stdout or file"
	case "mqtt":
		return "hubrelay-brokers"
	}
	return ""
}

// Validate reports all problems, joined. Its error contains no part of a URL.
func (c *Config) Validate() error {
	var errs []error
	if len(c.URLs)+len(c.URLFiles) == 0 {
		errs = append(errs, &relay.FieldError{
			Field:   "urls",
			Problem: "is missing, and so is url_files: name a destination, such as [ntfy://ntfy.sh/my-topic]",
		})
	}
	if _, err := netguard.New(c.AllowCIDRs); err != nil {
		errs = append(errs, err)
	}
	for i, text := range c.URLs {
		if _, _, err := parseURL(text); err != nil {
			errs = append(errs, fieldError("urls", i, "%v", err))
		}
	}
	return errors.Join(errs...)
}

// fieldError reports a problem with an item of a list.
func fieldError(key string, i int, format string, args ...any) error {
	return &relay.FieldError{Field: key + "." + strconv.Itoa(i), Problem: fmt.Sprintf(format, args...)}
}

// parseURL parses a URL of shoutrrr.
func parseURL(text string) (*url.URL, service, error) {
	u, err := url.Parse(strings.TrimSpace(text))
	if err != nil || u.Scheme == "" {
		return nil, service{}, errors.New("is not a URL of shoutrrr, such as ntfy://ntfy.sh/my-topic")
	}
	s, ok := knownServices()[u.Scheme]
	if ok && u.Scheme == "telegram" && parsesMarkup(u) {
		return nil, s, errors.New("has the parameter parsemode, which is not supported: a text of an event could forge links, or be " +
			"rejected; remove the parameter")
	}
	if ok {
		return u, s, nil
	}
	names := slices.Sorted(maps.Keys(knownServices()))
	scheme := relay.Truncate(u.Scheme, 20)
	switch near := suggest.ClosestName(scheme, names); {
	case betterSink(scheme) != "":
		return nil, s, fmt.Errorf("has the service %s, which is not supported here: use %s", scheme, betterSink(scheme))
	case near != "":
		return nil, s, fmt.Errorf("has the service %q, which is not known; did you mean %s://?", scheme, near)
	default:
		return nil, s, fmt.Errorf("has the service %q, which is not supported: choose one of %s",
			scheme, strings.Join(names, ", "))
	}
}

// parsesMarkup reports whether Telegram parses HTML or Markdown in texts.
func parsesMarkup(u *url.URL) bool {
	for name, values := range u.Query() {
		if strings.EqualFold(name, "parsemode") && !strings.EqualFold(strings.Join(values, ""), "none") {
			return true
		}
	}
	return false
}

// maxFile is the maximum size of a file with a URL.
const maxFile = 64 << 10

// parseDestinations reads the URL files and returns all destinations. The name of each is its key in the configuration.
func (c *Config) parseDestinations() ([]destination, error) {
	var list []destination
	add := func(key string, i int, text string) error {
		u, s, err := parseURL(text)
		if err != nil {
			return fieldError(key, i, "%v", err)
		}
		list = append(list, destination{name: key + "." + strconv.Itoa(i), url: u, service: s})
		return nil
	}
	for i, text := range c.URLs {
		if err := add("urls", i, text); err != nil {
			return nil, err
		}
	}
	for i, path := range c.URLFiles {
		text, err := filewatch.ReadFile(path)
		if err != nil {
			return nil, fieldError("url_files", i, "%v", err)
		}
		if len(text) > maxFile {
			return nil, fieldError("url_files", i, "names %s, which is larger than 64 KiB", path)
		}
		if err := add("url_files", i, string(text)); err != nil {
			return nil, err
		}
	}
	return list, nil
}
