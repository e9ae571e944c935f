package examples

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

// refuser is a server that rejects and disconnects in a different way for each hub. Its tokens start with the name of
// the hub.
type refuser struct {
	*httptest.Server
	streams sync.WaitGroup

	mu     sync.Mutex
	tokens map[string]int
	opened map[string]int
	used   map[string]bool
	after  map[string][]string // parameter after of each upgrade
}

func startRefuser(t *testing.T) *refuser {
	t.Helper()
	r := &refuser{
		tokens: map[string]int{}, opened: map[string]int{}, used: map[string]bool{},
		after: map[string][]string{},
	}
	r.Server = httptest.NewServer(r)
	t.Cleanup(func() {
		r.Close()
		r.streams.Wait()
	})
	return r
}

func (r *refuser) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", "*")
	h.Set("Access-Control-Allow-Headers", "Authorization, X-Hub-Id")
	h.Set("Access-Control-Expose-Headers", "Retry-After")
	token := req.URL.Query().Get("token")
	hub, _, _ := strings.Cut(token, " ")
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case req.Method == http.MethodOptions:
	case token == "":
		hub = req.Header.Get("X-Hub-Id")
		r.tokens[hub]++
		r.token(w, hub, r.tokens[hub])
	case websocket.IsWebSocketUpgrade(req):
		r.opened[hub]++
		r.used[token] = true
		r.after[hub] = append(r.after[hub], req.URL.Query().Get("after"))
		r.upgrade(w, req, hub, r.opened[hub])
	case hub == "refused" || hub == "lost" && r.used[token]:
		refuse(w, http.StatusUnauthorized, "")
	case hub == "stale" && r.opened[hub] == 2:
		refuse(w, http.StatusUnprocessableEntity, "after")
	}
}

func refuse(w http.ResponseWriter, status int, parameter string) {
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, `{"error":{"code":"%d.test","detail":"no","extra":{"parameter":%q}},"data":null}`, status,
		parameter)
}

func (r *refuser) token(w http.ResponseWriter, hub string, n int) {
	switch {
	case hub == "page" && n == 1:
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(http.StatusFound)
	case hub == "page" && n == 2:
		_, _ = io.WriteString(w, "<html>back soon</html>")
	case hub == "busy":
		w.Header().Set("Retry-After", "100000")
		refuse(w, http.StatusTooManyRequests, "")
	default:
		_, _ = fmt.Fprintf(w, `{"data":{"token":"%s %d"}}`, hub, n)
	}
}

// upgrade handles upgrade n of a hub.
func (r *refuser) upgrade(w http.ResponseWriter, req *http.Request, hub string, n int) {
	switch {
	case hub == "refused":
		refuse(w, http.StatusUnauthorized, "")
		return
	case hub == "stale" && n == 2:
		refuse(w, http.StatusUnprocessableEntity, "after")
		return
	case hub == "lost" && n <= 4:
		panic(http.ErrAbortHandler)
	}
	ws, err := (&websocket.Upgrader{CheckOrigin: func(*http.Request) bool { return true }}).Upgrade(w, req, nil)
	if err != nil {
		return
	}
	r.streams.Go(func() {
		defer func() { _ = ws.Close() }()
		_ = ws.SetReadDeadline(time.Now().Add(patience))
		pings := 0
		answer := ws.PingHandler()
		ws.SetPingHandler(func(data string) error {
			if hub == "silent" {
				return nil
			}
			if pings++; hub == "quiet" && pings == 3 {
				_ = ws.WriteMessage(websocket.TextMessage, []byte(`{"topic":"container.created","cursor":"pings"}`))
			}
			return answer(data)
		})
		for _, topic := range []string{"hubrelay.cursor", "container.created"}[:1+min(n/last[hub], 1)] {
			_ = ws.WriteMessage(websocket.TextMessage, fmt.Appendf(nil, `{"topic":%q,"cursor":"c%d"}`, topic, n))
		}
		if n < last[hub] && codes[hub] != nil {
			_ = ws.WriteMessage(websocket.CloseMessage, websocket.FormatCloseMessage(codes[hub][n-1], "go"))
		}
		for hub != "short" && (hub != "stale" || n > 1) { // these end without data
			if _, _, err := ws.ReadMessage(); err != nil {
				return
			}
		}
	})
}

// last is the connection of a hub that gets a notification immediately.
var last = map[string]int{
	"closes": 4, "refused": 1, "lost": 5, "page": 1, "silent": 2, "stale": 3, "busy": 1, "quiet": 99, "short": 99,
	"later": 2, "onopen": 1,
}

// codes are the close codes of earlier connections.
var codes = map[string][]int{
	"closes": {websocket.ClosePolicyViolation, websocket.CloseServiceRestart, websocket.CloseTryAgainLater},
	"later":  {websocket.CloseTryAgainLater},
}

// reaction is the result of a client for a hub of the refuser.
type reaction struct {
	Topics, Errors []string
	Pauses         []float64
	Thrown         string
}

// TestLongModuleIsRefused checks how the module handles rejections and closes in each runtime.
func TestLongModuleIsRefused(t *testing.T) {
	t.Parallel()
	d := &daemon{pagePort: "0"} // any free port, because no relay checks the origin
	for name, run := range runtimes {
		t.Run(name, func(t *testing.T) {
			r := startRefuser(t)
			told, err := json.Marshal(setting{URL: r.URL, Key: "key"})
			if err != nil {
				t.Fatal(err)
			}
			var got map[string]reaction
			if out := run(t, d, "refusals.mjs", told); json.Unmarshal(out, &got) != nil {
				t.Fatalf("%s", out)
			}
			r.check(t, got, name == "node with ws")
		})
	}
}

func (r *refuser) check(t *testing.T, got map[string]reaction, saysWhy bool) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	equal := func(what string, got, want any) {
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: got %v, want %v", what, got, want)
		}
	}
	equal("closes", got["closes"].Topics, "[container.created c4]")
	equal("closes, each after the last event", r.after["closes"], "[now c1 c2 c3]")
	equal("closes", got["closes"].Errors, "[the connection was closed: 1008 go the connection was closed: 1012 go "+
		"the connection was closed: 1013 go]")
	if pauses := got["closes"].Pauses; len(pauses) != 3 || slices.Min(pauses) < 2 || slices.Max(pauses) > 8 {
		t.Errorf("closes: pauses of %v", pauses)
	}
	if pauses := got["short"].Pauses; len(pauses) == 0 || slices.Max(pauses) < 100 {
		t.Errorf("connections that bring one message each: pauses of %v", pauses)
	}
	if pauses := got["later"].Pauses; len(pauses) != 1 || pauses[0] < 2000 || pauses[0] > 4000 {
		t.Errorf("try again later: pauses of %v", pauses)
	}
	if pauses := got["address"].Pauses; len(pauses) != 3 || slices.Min(pauses) < 2 || slices.Max(pauses) > 4 {
		t.Errorf("rejections without errors: pauses of %v", pauses)
	}
	equal("an error of the caller's", got["onopen"].Thrown, "the caller's")
	if saysWhy {
		equal("a line on which pings are answered", got["quiet"].Topics, "[container.created pings]")
	}
	tokens := 4 // one of them was never used
	if saysWhy {
		tokens = 3
	}
	equal("a token that is always refused", got["refused"].Thrown, "no (401.test)")
	equal("a token that is always refused", []int{r.tokens["refused"], r.opened["refused"]}, []int{tokens, 3})
	equal("upgrades that use up a token and are lost", got["lost"].Topics, "[container.created c5]")
	equal("upgrades that use up a token and are lost", len(got["lost"].Pauses), 4)
	equal("a redirect and a page", got["page"].Topics, "[container.created c1]")
	if errors := got["page"].Errors; len(errors) != 2 || !strings.Contains(errors[0], "check the address") ||
		!strings.Contains(errors[1], "check the address") {
		t.Errorf("a redirect and a page: %q", errors)
	}
	equal("a line that brings nothing", got["silent"].Topics, "[container.created c2]")
	equal("a line that brings nothing", r.after["silent"], "[now c1]")
	equal("a cursor that is not known", got["stale"].Topics, "[hubrelay.resync c3 container.created c3]")
	equal("a cursor that is not known", r.after["stale"], "[now c1 now]")
	equal("a server that wants much peace", got["busy"].Pauses, "[300000]")
	for hub, saw := range got {
		if saw.Thrown != "" && hub != "refused" && hub != "onopen" {
			t.Errorf("%s: threw %s", hub, saw.Thrown)
		}
	}
}
