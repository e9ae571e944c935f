package testkit

import (
	"context"
	"io"
	"net/http"
	"strings"
)

// NotificationsPath is the path of the notifications of a hub.
const NotificationsPath = "/v1/hubs/current/notifications"

// Request is an HTTP request to a daemon. Empty fields are omitted.
type Request struct {
	Method, Path, Key, Hub, ContentType, Body string // the default of Path is NotificationsPath
	Header                                    map[string]string
}

// Reply is the response to a request.
type Reply struct {
	Status int
	Header http.Header
	Body   string
}

// send sends the request to an address and reads the complete response.
func (r Request) send(ctx context.Context, client *http.Client, address string) (Reply, error) {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	path := r.Path
	if path == "" {
		path = NotificationsPath
	}
	req, err := http.NewRequestWithContext(ctx, r.Method, "http://"+address+path, strings.NewReader(r.Body))
	if err != nil {
		return Reply{}, err
	}
	for name, value := range map[string]string{"X-Hub-Id": r.Hub, "Content-Type": r.ContentType} {
		if value != "" {
			req.Header.Set(name, value)
		}
	}
	if r.Key != "" {
		req.Header.Set("Authorization", "Bearer "+r.Key)
	}
	for name, value := range r.Header {
		req.Header.Set(name, value)
	}
	res, err := client.Do(req) //nolint:bodyclose // ReadReply closes it
	if err != nil {
		return Reply{}, err
	}
	return ReadReply(res)
}

// ReadReply reads the complete response to a request, and closes its body.
func ReadReply(res *http.Response) (Reply, error) {
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	return Reply{Status: res.StatusCode, Header: res.Header, Body: string(body)}, err
}

// ServeUpgrade responds with status 101, which no client asked for, and waits until the client closes the connection.
func ServeUpgrade(w http.ResponseWriter, _ *http.Request) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: other\r\n\r\n")
	_, _ = io.Copy(io.Discard, conn)
}
