package email

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"net"
	"net/textproto"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hubrelay/hubrelay/internal/redact"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/sinks/sinktest"
)

func TestMain(m *testing.M) {
	testkit.RunParallel(8) // the tests wait most of the time
	goleak.VerifyTestMain(m)
}

func openTest(t testing.TB, c *Config) relay.Sink {
	t.Helper()
	s, err := Kind().Open(relay.SinkSettings{
		Name: "test", Log: testkit.Log(t), UserAgent: "hubrelay/test",
	}, c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// script is an unencrypted server that plays a script.
type script struct {
	mu    sync.Mutex
	mails []string
	done  chan struct{}
}

// play listens and calls serve for each connection.
func (s *script) play(t testing.TB, serve func(conn net.Conn, in *bufio.Reader)) *Config {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.done = make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer func() { _ = conn.Close() }()
				serve(conn, bufio.NewReader(conn))
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); close(s.done); wg.Wait() })
	return configFor(l)
}

func configFor(l net.Listener) *Config {
	addr, _ := l.Addr().(*net.TCPAddr)
	return &Config{
		Host: "127.0.0.1", Port: addr.Port, TLS: tlsNone, Auth: "plain", Sender: "a@example.com",
		To:         []string{"b@example.com"},
		AllowCIDRs: []string{"127.0.0.0/8"},
	}
}

// converse returns a server that sends the given answer to a verb, and a success to others. The answer "" closes the
// connection, and "-" sends no more.
func (s *script) converse(answers map[string]string) func(net.Conn, *bufio.Reader) {
	return func(conn net.Conn, in *bufio.Reader) {
		say := func(verb, otherwise string) bool {
			text, ok := answers[verb]
			if !ok {
				text = otherwise
			}
			switch text {
			case "":
				return false
			case "-":
				<-s.done
				return false
			}
			_, err := io.WriteString(conn, text+"\r\n")
			return err == nil
		}
		if !say("greeting", "220 test ESMTP") {
			return
		}
		for {
			line, err := in.ReadString('\n')
			verb, _, _ := strings.Cut(strings.ToUpper(strings.TrimSpace(line)), " ")
			good := map[string]string{"DATA": "354 go on", "QUIT": "221 bye"}[verb]
			if good == "" {
				good = "250 fine"
			}
			if err != nil || !say(verb, good) {
				return
			}
			if verb != "DATA" || answers["DATA"] != "" {
				continue
			}
			var mail strings.Builder
			for {
				line, err := in.ReadString('\n')
				if err != nil {
					return
				}
				if line == ".\r\n" {
					break
				}
				mail.WriteString(line)
			}
			s.mu.Lock()
			s.mails = append(s.mails, mail.String())
			s.mu.Unlock()
			if !say("end", "250 taken") {
				return
			}
		}
	}
}

var messageID = regexp.MustCompile(`(?m)^Message-ID: <([^.]*)\.test\.hubrelay@example\.com>`)

func TestConformance(t *testing.T) {
	t.Parallel()
	sinktest.Run(t, sinktest.Harness{
		Skip: map[sinktest.Behavior]string{
			sinktest.Throttle: "SMTP names no time",
			sinktest.Gone:     "SMTP has no word for it: a receiver that is not there may be another's fault",
		},
		Open: func(t *testing.T, b sinktest.Behavior) (relay.Sink, func() []string) {
			s := &script{}
			end := map[sinktest.Behavior]string{
				sinktest.Fail: "451 later", sinktest.Reject: "554 spam",
				sinktest.Hang: "-",
			}
			answers := map[string]string{}
			if text, ok := end[b]; ok {
				answers["end"] = text
			}
			c := s.play(t, s.converse(answers))
			if b == sinktest.Unreachable {
				l, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				c = configFor(l)
				_ = l.Close()
			}
			return openTest(t, c), func() []string {
				s.mu.Lock()
				defer s.mu.Unlock()
				var ids []string
				for _, m := range s.mails {
					if id := messageID.FindStringSubmatch(m); id != nil {
						ids = append(ids, id[1])
					}
				}
				return ids
			}
		},
	})
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answers map[string]string
		outcome relay.Outcome
		said    string
	}{
		"lost behind the message": {map[string]string{"QUIT": ""}, relay.OutcomeDelivered, ""},
		"odd goodbye":             {map[string]string{"QUIT": "500 no"}, relay.OutcomeDelivered, ""},
		"several lines": {
			map[string]string{"EHLO": "250-test\r\n250-SIZE 10\r\n250 HELP"},
			relay.OutcomeDelivered, "",
		},
		"no EHLO": {map[string]string{"EHLO": "502 what"}, relay.OutcomeDelivered, ""},
		"busy":    {map[string]string{"greeting": "421 busy"}, relay.OutcomeRetry, "status 421"},
		"no service": {
			map[string]string{"greeting": "554 no service here"},
			relay.OutcomeRetry,
			"read the greeting of 127.0.0.1: status 554",
		},
		"no greeting": {
			map[string]string{"greeting": ""},
			relay.OutcomeRetry,
			"closed the connection without a reply",
		},
		"garbage": {
			map[string]string{"greeting": "HTTP/1.1 400 Bad Request"},
			relay.OutcomeRetry,
			"read the greeting",
		},
		"no sender": {
			map[string]string{"MAIL": "550 who are you"},
			relay.OutcomePermanent,
			"send the sender to 127.0.0.1: status 550",
		},
		"a login is needed": {map[string]string{"MAIL": "530 log in"}, relay.OutcomeRetry, "status 530"},
		"greylisted":        {map[string]string{"RCPT": "450 try again"}, relay.OutcomeRetry, "status 450"},
		"full for now":      {map[string]string{"RCPT": "452 full"}, relay.OutcomeRetry, "status 452"},
		"full":              {map[string]string{"RCPT": "552 full"}, relay.OutcomeRetry, "status 552"},
		"closing":           {map[string]string{"RCPT": "421 closing"}, relay.OutcomeRetry, "status 421"},
		"not wanted":        {map[string]string{"DATA": "554 no"}, relay.OutcomePermanent, "status 554"},
		"wrong order":       {map[string]string{"DATA": "503 no"}, relay.OutcomeRetry, "status 503"},
		"hangs up in DATA": {
			map[string]string{"end": ""},
			relay.OutcomeRetry,
			"send the message to 127.0.0.1: the server closed the connection without a reply",
		},
		"refused at the end": {
			map[string]string{"end": "550-no\r\n550 never"},
			relay.OutcomePermanent,
			"status 550",
		},
		"odd code": {map[string]string{"end": "999 what"}, relay.OutcomeRetry, "999"},
		"floods": {
			map[string]string{"EHLO": strings.Repeat("250-x\r\n", 100_000) + "250 x"},
			relay.OutcomeRetry, "more than 256 KiB",
		},
		"an endless line": {
			map[string]string{"greeting": "220 " + strings.Repeat("x", 1<<20)},
			relay.OutcomeRetry, "more than 256 KiB",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &script{}
			err := openTest(t, s.play(t, s.converse(c.answers))).Deliver(t.Context(), sinktest.Sample("a"))
			if outcome, _ := relay.Classify(err); outcome != c.outcome || err != nil &&
				!strings.Contains(err.Error(), c.said) {
				t.Errorf("%s: %v, want %s", outcome, err, c.said)
			}
		})
	}
}

// A server's response counts even if the time ends while it is read.
func TestAnswerAtTheLastMoment(t *testing.T) {
	t.Parallel()
	s, ok := openTest(t, &Config{
		Host: "mail.example.com", TLS: tlsNone, Auth: "plain", Sender: "a@example.com", To: []string{"b@example.com"},
	}).(*Sink)
	if !ok {
		t.Fatal("another sink")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	for code, want := range map[int]relay.Outcome{550: relay.OutcomePermanent, 450: relay.OutcomeRetry} {
		err := s.explainError(ctx, smtpStep{"send the sender to", true}, &textproto.Error{Code: code, Msg: "no"})
		var answer *relay.ResponseError
		if outcome, _ := relay.Classify(err); outcome != want || !errors.As(err, &answer) || answer.Status != code {
			t.Errorf("%s: %v", outcome, err)
		}
	}
}

// Whatever a server waits with, an attempt ends with its time.
func TestSlowServers(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"greeting", "EHLO", "MAIL", "RCPT", "DATA", "end", "drip"} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			s := &script{}
			serve := s.converse(map[string]string{verb: "-"})
			if verb == "drip" {
				serve = func(conn net.Conn, _ *bufio.Reader) {
					for {
						if _, err := conn.Write([]byte("2")); err != nil {
							return
						}
						time.Sleep(time.Millisecond)
					}
				}
			}
			sink := openTest(t, s.play(t, serve))
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			err := sink.Deliver(ctx, sinktest.Sample("a"))
			if outcome, _ := relay.Classify(err); outcome != relay.OutcomeRetry ||
				!errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no reply in time") {
				t.Errorf("%s: %v", outcome, err)
			}
		})
	}
}

// A server that offers no TLS gets nothing, and no name is dialed that leads inwards.
func TestSafety(t *testing.T) {
	t.Parallel()
	s := &script{}
	c := s.play(t, s.converse(nil))
	c.TLS = tlsStart
	if err := openTest(t, c).Deliver(t.Context(), sinktest.Sample("a")); err == nil ||
		!strings.Contains(err.Error(), "does not offer STARTTLS") {
		t.Errorf("got %v", err)
	}
	if len(s.mails) > 0 {
		t.Error("the mail was sent unencrypted")
	}
	// The name may be dialed at one of its addresses, and the server is at the other.
	c.TLS, c.Host, c.AllowCIDRs = tlsNone, "localhost", []string{"::1"}
	if err := openTest(t, c).Deliver(t.Context(), sinktest.Sample("a")); err == nil || len(s.mails) > 0 {
		t.Errorf("an address that is not allowed was dialed: %v", err)
	}
	c.AllowCIDRs = []string{"127.0.0.0/8"}
	if err := openTest(t, c).Deliver(t.Context(), sinktest.Sample("a")); err != nil {
		t.Error(err)
	}
}

// A server may repeat a login in its reply, as it received it, also with the password before the last change of the file.
func TestErrors_RedactPassword(t *testing.T) {
	t.Parallel()
	const password = "s3cretpassword"
	before := "\x00user\x00" // a multiple of three bytes, so base64 of the password follows
	login := base64.StdEncoding.EncodeToString([]byte(before + password))
	encoded := base64.StdEncoding.EncodeToString([]byte(password))[:12]
	s := &Sink{config: &Config{Username: "user"}, password: func() string { return password }}
	s.recent.Add(redact.New("s3cretformer"))
	got := s.redactPassword("no " + login + " and " + password + " after s3cretformer")
	if !strings.HasSuffix(got, " and (redacted) after (redacted)") || !strings.Contains(login, encoded) || strings.Contains(got, encoded) {
		t.Errorf("got %q", got)
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	good := func(change func(*Config)) *Config {
		c := &Config{
			Host: "smtp.example.com", TLS: tlsStart, Auth: "plain", Sender: "a@example.com",
			To: []string{"B <b@example.com>"},
		}
		change(c)
		return c
	}
	for _, x := range []struct {
		change  func(*Config)
		problem string
	}{
		{func(*Config) {}, ""},
		{func(c *Config) { c.Username, c.Password = "u", "s3cret" }, ""},
		{func(c *Config) { c.Host = "" }, "host is missing"},
		{func(c *Config) { c.Host = "smtp.example.com:25" }, "the port in port"},
		{func(c *Config) { c.Host = "127.0.0.1" }, "host is not allowed: 127.0.0.1"},
		{func(c *Config) { c.Port = 70000 }, "port is 70000"},
		{func(c *Config) { c.TLS = "ssl" }, "choose starttls, tls or none"},
		{func(c *Config) { c.TLS, c.Username, c.Password = tlsNone, "u", "s3cret" }, "sent unencrypted"},
		{func(c *Config) { c.CAFile = "testdata/server.py" }, "without a PEM certificate"},
		{func(c *Config) { c.Username = "u" }, "password is missing"},
		{func(c *Config) { c.Password = "s3cret" }, "username is missing"},
		{func(c *Config) { c.Username, c.Password = "u", "s3cret\r\nX" }, "password contains a line break"},
		{func(c *Config) { c.Username, c.PasswordFile = "u", "testdata/missing" }, "password_file cannot be read"},
		{func(c *Config) { c.Username, c.Password, c.PasswordFile = "u", "s3cret", "x" }, "conflicts with password"},
		{func(c *Config) { c.Auth = "cram" }, "choose plain or login"},
		{func(c *Config) { c.Sender = "" }, "sender is missing"},
		{func(c *Config) { c.Sender = "a@example.com\r\nBcc: x@example.com" }, "sender is not an address"},
		{func(c *Config) { c.To = nil }, "to is empty"},
		{
			func(c *Config) { c.To = []string{"x@example.com", "ü@example.com"} },
			"to.1 has an address with non-ASCII characters",
		},
		{func(c *Config) { c.Cc = []string{"x"} }, "cc.0 is not an address"},
		{func(c *Config) { c.AllowCIDRs = []string{"x"} }, "allow_cidrs.0"},
	} {
		c := good(x.change)
		err := c.validate()
		if (err == nil) != (x.problem == "") || err != nil &&
			(!strings.Contains(err.Error(), x.problem) || strings.Contains(err.Error(), "s3cret")) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// Explain shows what is sent, except the time.
func TestExplain(t *testing.T) {
	t.Parallel()
	s := &script{}
	sink := openTest(t, s.play(t, s.converse(nil)))
	d := hostile("0123456789abcdef01234567")
	explainer, ok := sink.(relay.Previewer)
	if !ok {
		t.Fatal("shows nothing")
	}
	e, err := explainer.Preview(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	if err := sink.Deliver(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	_, body, _ := strings.Cut(s.mails[0], "\r\n\r\n")
	if strings.TrimRight(body, "\r\n") != strings.TrimRight(string(e.Payload), "\r\n") {
		t.Errorf("sent\n%s\nexplained\n%s", body, e.Payload)
	}
	for _, h := range e.Headers {
		if !strings.Contains(s.mails[0], "\n"+h.Name+": ") && !strings.HasPrefix(s.mails[0], h.Name+": ") {
			t.Errorf("%s was not sent", h.Name)
		}
	}
}
