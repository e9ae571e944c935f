package slack

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/hubrelay/hubrelay/internal/httpclient"
	"github.com/hubrelay/hubrelay/internal/redact"
	"github.com/hubrelay/hubrelay/relay"
)

// The methods that an app calls.
const (
	methodPost   = "chat.postMessage"
	methodUpdate = "chat.update"
)

// maxResponse is the maximum size of a response in bytes. A response repeats the message.
const maxResponse = 1 << 20

// maxIDBytes is the maximum length of a channel or ts. Slack uses fewer than 20 bytes.
const maxIDBytes = 64

// apiResponse is the response of every method. Channel and TS identify the message.
type apiResponse struct {
	OK       bool   `json:"ok"`
	Error    string `json:"error"`
	Needed   string `json:"needed"`
	Provided string `json:"provided"`
	Channel  string `json:"channel"`
	TS       string `json:"ts"`
	Metadata struct {
		Messages []string `json:"messages"`
	} `json:"response_metadata"`
}

// errThreadGone reports that the first message of a thread no longer exists, or cannot be changed.
var errThreadGone = errors.New("the thread's first message is gone")

func (a *appSink) methodURL(method string) *url.URL { return a.api.URL().JoinPath(method) }

// callMethod calls a method once. Its errors are marked with their outcome and do not contain the token.
func (a *appSink) callMethod(ctx context.Context, method string, m *outgoing) (*apiResponse, error) {
	body, err := json.Marshal(m)
	if err != nil {
		return nil, relay.Permanent(fmt.Errorf("write a message: %w", err))
	}
	token := a.token()
	a.recent.Add(redact.New(token))
	header := a.header.Clone()
	header.Set("Authorization", "Bearer "+token)
	resp, err := a.transport.Post(ctx, &httpclient.Request{
		Head: httpclient.NewRequestTemplate(a.methodURL(method), header), Body: body,
	})
	if err != nil {
		return nil, a.api.RedactError(ctx, err, a.api.Secrets().Join(a.recent.All()))
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxResponse))
	if err != nil {
		return nil, a.api.RedactError(ctx, err, a.api.Secrets().Join(a.recent.All()))
	}
	var response apiResponse
	bad := json.Unmarshal(text, &response) != nil
	if resp.StatusCode == http.StatusOK && !bad && response.OK && isShortID(response.TS) && isShortID(response.Channel) {
		return &response, nil
	}
	said := &relay.ResponseError{Status: resp.StatusCode, Body: response.redactTexts(text, a.recent.All())}
	switch {
	case resp.StatusCode == http.StatusTooManyRequests || response.Error == "ratelimited" ||
		response.Error == "rate_limited":
		err := fmt.Errorf("%s at %s: %w: too many messages for Slack", method, a.api.Host(), said)
		if wait, ok := httpclient.RetryAfter(resp.Header, a.now()); ok {
			return nil, relay.RetryAfter(err, wait)
		}
		return nil, err
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s at %s: %w", method, a.api.Host(), said)
	case bad || !response.OK && response.Error == "":
		return nil, fmt.Errorf(
			"%s at %s: %w, but the response is not one of Slack: check api_url and proxies", method, a.api.Host(), said,
		)
	case !response.OK:
		return nil, a.classifyError(method, m.Channel, &response, said)
	default:
		return nil, fmt.Errorf("%s at %s: %w without a valid channel and ts of a message", method, a.api.Host(), said)
	}
}

// isShortID reports whether a channel or ts can be stored with its thread.
func isShortID(id string) bool { return id != "" && len(id) <= maxIDBytes }

// redactTexts removes secrets from the texts of an error, and returns the beginning of the whole response without them. It keeps
// only the beginning of each text, and the messages of the beginning of the response.
func (r *apiResponse) redactTexts(text []byte, secrets redact.Secrets) string {
	const limit = httpclient.MaxResponseBody
	body := secrets.Prefix(string(text), limit)
	messages, size := r.Metadata.Messages, 0
	for i, m := range messages {
		if size >= limit {
			messages = messages[:i]
			break
		}
		size += len(m) + len(`"",`)
	}
	r.Metadata.Messages = messages
	fields := []*string{&r.Error, &r.Needed, &r.Provided}
	for i := range messages {
		fields = append(fields, &messages[i])
	}
	for _, field := range fields {
		redacted := secrets.Prefix(*field, limit)
		if !strings.HasPrefix(*field, redacted) {
			body = redact.Replacement // it may have been escaped before it was written as JSON
		}
		*field = redacted
	}
	return body
}

// classifyError returns the outcome of a response with ok: false.
func (a *appSink) classifyError(method, channel string, response *apiResponse, said error) error {
	known := appMeaning(response)
	err := fmt.Errorf("%s to %s at %s: %w: %s", method, channel, a.api.Host(), said, relay.Truncate(response.Error, 80))
	if known.problem != "" {
		err = fmt.Errorf("%w: %s", err, known.problem)
	}
	if list := response.Metadata.Messages; len(list) > 0 {
		err = fmt.Errorf("%w (%s)", err, relay.Truncate(strings.Join(list, "; "), 300))
	}
	switch {
	case known.threadGone:
		return fmt.Errorf("%w: %w", errThreadGone, err)
	case known.outcome == relay.OutcomeGone:
		return relay.Gone(err)
	case known.outcome == relay.OutcomePermanent:
		return relay.Permanent(err)
	}
	return err
}

type slackError struct {
	errorMeaning
	threadGone bool // the first message of the thread is gone
}

// appMeaning classifies the errors of chat.postMessage and chat.update in Slack's reference. Errors of the token
// disable the sink. Errors of a channel are retried, because an operator can fix them in Slack, and other channels
// work. Errors of the message are permanent. All others may be temporary.
func appMeaning(response *apiResponse) slackError {
	gone := func(problem string) slackError {
		return slackError{errorMeaning: errorMeaning{relay.OutcomeGone, problem}}
	}
	bad := func(problem string) slackError {
		return slackError{errorMeaning: errorMeaning{relay.OutcomePermanent, problem}}
	}
	later := func(problem string) slackError {
		return slackError{errorMeaning: errorMeaning{relay.OutcomeRetry, problem}}
	}
	switch response.Error {
	case "not_authed", "invalid_auth", "token_revoked", "token_expired", "account_inactive", "user_is_bot",
		"not_allowed_token_type":
		return gone("Slack rejects the token: set the bot token (xoxb-…) of an installed app")
	case "org_login_required", "ekm_access_denied", "team_access_not_granted", "access_denied":
		return gone("the workspace does not allow the app: an administrator must approve it")
	case "missing_scope", "no_permission":
		needed := relay.Truncate(cmp.Or(response.Needed, "chat:write"), 80)
		if response.Provided != "" {
			needed += " (it has " + relay.Truncate(response.Provided, 200) + ")"
		}
		return gone("the app lacks the scope " + needed +
			": add it under \"OAuth & Permissions\" in the settings of the app, install the app again, and set the " +
			"new token")
	case "channel_not_found":
		return later(
			"there is no channel with this name or ID, or it is private and the app was not invited: set the ID, " +
				"which does not change when a channel is renamed, and invite the app to a private channel",
		)
	case "not_in_channel":
		return later(
			"the app is not a member of the channel: type /invite and the @name of the app there, or, for a " +
				"public channel, add the scope chat:write.public to the app",
		)
	case "is_archived":
		return later("the channel is archived: unarchive it, or set another")
	case "restricted_action", "restricted_action_read_only_channel", "restricted_action_non_threadable_channel",
		"restricted_action_thread_only_channel", "restricted_action_thread_locked":
		return later(
			"the workspace does not allow the app to post in the channel: change the settings of the channel, or " +
				"set another",
		)
	case "message_not_found", "thread_not_found", "cant_update_message", "edit_window_closed",
		"cannot_reply_to_message":
		return slackError{threadGone: true}
	case "msg_too_long", "msg_blocks_too_long", "too_many_attachments", "markdown_text_conflict":
		return bad("this message is too long for Slack")
	case "no_text":
		return bad("Slack finds no text in this message")
	case "invalid_blocks", "invalid_blocks_format", "invalid_attachments", "invalid_arguments", "invalid_arg_name",
		"invalid_array_arg",
		"invalid_json", "json_not_object", "invalid_form_data", "invalid_charset", "block_mismatch":
		return bad("Slack cannot parse this message: correct the templates, if there are any")
	}
	return slackError{}
}
