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
	"github.com/hubrelay/hubrelay/relay"
)

// The methods that an app calls.
const (
	methodPost   = "chat.postMessage"
	methodUpdate = "chat.update"
)

// maxAnswer bounds what is read of an answer, which repeats the message.
const maxAnswer = 1 << 20

// apiAnswer is the answer of every method. Channel and TS identify the message.
type apiAnswer struct {
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

// errThreadGone means that the first message of a thread does not exist any longer, or cannot be changed.
var errThreadGone = errors.New("the thread's first message is gone")

func (a *appSink) methodURL(method string) *url.URL { return a.api.URL().JoinPath(method) }

// callMethod calls a method once. Its errors are marked by their outcome and contain no token.
func (a *appSink) callMethod(ctx context.Context, method string, m *outgoing) (*apiAnswer, error) {
	body, err := json.Marshal(m)
	if err != nil {
		return nil, relay.Permanent(fmt.Errorf("write a message: %w", err))
	}
	token := a.token()
	header := a.header.Clone()
	header.Set("Authorization", "Bearer "+token)
	resp, err := a.transport.Post(ctx, &httpclient.Request{
		Head: httpclient.NewRequestTemplate(a.methodURL(method), header), Body: body,
	})
	if err != nil {
		return nil, a.redactError(a.api.RedactError(ctx, err), token)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return nil, fmt.Errorf("%s at %s: %w", method, a.api.Host(), &relay.ResponseError{Status: resp.StatusCode})
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, a.redactError(a.api.RedactError(ctx, err), token)
	}
	said := &relay.ResponseError{Status: resp.StatusCode, Body: responseExcerpt(text, token)}
	var answer apiAnswer
	bad := json.Unmarshal(text, &answer) != nil
	switch {
	case resp.StatusCode == http.StatusTooManyRequests || answer.Error == "ratelimited" ||
		answer.Error == "rate_limited":
		err := fmt.Errorf("%s at %s: %w: too many messages for Slack", method, a.api.Host(), said)
		if wait, ok := httpclient.RetryAfter(resp.Header, a.now()); ok {
			return nil, relay.RetryAfter(err, wait)
		}
		return nil, err
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s at %s: %w", method, a.api.Host(), said)
	case bad || !answer.OK && answer.Error == "":
		return nil, fmt.Errorf(
			"%s at %s: %w, but it is not an answer of Slack: check api_url and proxies", method, a.api.Host(), said,
		)
	case !answer.OK:
		return nil, a.classifyError(method, m.Channel, &answer, said)
	case answer.TS == "" || answer.Channel == "":
		return nil, fmt.Errorf("%s at %s: %w without a message's ts", method, a.api.Host(), said)
	}
	return &answer, nil
}

// responseExcerpt is the beginning of an answer, for dead letters.
func responseExcerpt(text []byte, token string) string {
	return relay.Truncate(strings.ReplaceAll(strings.ToValidUTF8(string(text), ""), token, "(redacted)"),
		httpclient.MaxResponseBody)
}

// redactError leaves out an error that repeats the token.
func (a *appSink) redactError(err error, token string) error {
	if strings.Contains(err.Error(), token) {
		return fmt.Errorf("call %s: the connection failed (details left out, since they repeat the token)",
			a.api.Host())
	}
	return err
}

// classifyError returns the outcome of an answer with ok: false.
func (a *appSink) classifyError(method, channel string, answer *apiAnswer, said error) error {
	known := appMeaning(answer)
	err := fmt.Errorf("%s to %s at %s: %w: %s", method, channel, a.api.Host(), said, relay.Truncate(answer.Error, 80))
	if known.problem != "" {
		err = fmt.Errorf("%w: %s", err, known.problem)
	}
	if list := answer.Metadata.Messages; len(list) > 0 {
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
	threadGone bool // the message on which the thread hangs
}

// appMeaning classifies the errors of chat.postMessage and chat.update in Slack's reference. Errors of the token
// disable the sink. Errors of a channel are retried, because an operator can fix them in Slack, and other channels
// work. Errors of the message are permanent. All others may be temporary.
func appMeaning(answer *apiAnswer) slackError {
	gone := func(problem string) slackError {
		return slackError{errorMeaning: errorMeaning{relay.OutcomeGone, problem}}
	}
	bad := func(problem string) slackError {
		return slackError{errorMeaning: errorMeaning{relay.OutcomePermanent, problem}}
	}
	later := func(problem string) slackError {
		return slackError{errorMeaning: errorMeaning{relay.OutcomeRetry, problem}}
	}
	switch answer.Error {
	case "not_authed", "invalid_auth", "token_revoked", "token_expired", "account_inactive", "user_is_bot",
		"not_allowed_token_type":
		return gone("Slack does not accept the token: give the bot token (xoxb-…) of an app that is installed")
	case "org_login_required", "ekm_access_denied", "team_access_not_granted", "access_denied":
		return gone("the workspace does not let the app in: an administrator must allow it")
	case "missing_scope", "no_permission":
		needed := relay.Truncate(cmp.Or(answer.Needed, "chat:write"), 80)
		if answer.Provided != "" {
			needed += " (it has " + relay.Truncate(answer.Provided, 200) + ")"
		}
		return gone("the app lacks the scope " + needed +
			": add it under \"OAuth & Permissions\" of the app's settings, install the app again, and give the " +
			"token that is shown then")
	case "channel_not_found":
		return later(
			"there is no channel of this name or id, or it is private and the app was not invited: give the id, " +
				"which stays when a channel is renamed, and invite the app where the channel is private",
		)
	case "not_in_channel":
		return later(
			"the app is no member of the channel: write /invite and the app's @name there, or, where the channel is " +
				"public, give the app the scope chat:write.public",
		)
	case "is_archived":
		return later("the channel is archived: take it out of the archive, or name another")
	case "restricted_action", "restricted_action_read_only_channel", "restricted_action_non_threadable_channel",
		"restricted_action_thread_only_channel", "restricted_action_thread_locked":
		return later(
			"the workspace does not let the app post like this in the channel: change the channel's settings, or " +
				"name another",
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
		return bad("Slack cannot read this message: correct the templates, if there are any")
	}
	return slackError{}
}
