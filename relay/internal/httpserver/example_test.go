package httpserver_test

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/httpserver"
)

func ExampleServer() {
	server, err := httpserver.Listen(httpserver.Options{
		Name: "server", Addr: "127.0.0.1:0",
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			httpserver.WriteError(w, r, relay.NewError(relay.CodeNoURI, "empty"))
		}),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	done := make(chan error)
	go func() { done <- server.Run(ctx) }()
	res, err := http.Get("http://" + server.Addr().String())
	if err != nil {
		fmt.Println(err)
		return
	}
	body, _ := io.ReadAll(res.Body)
	_ = res.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	fmt.Print(string(body))
	stop()
	fmt.Println(<-done)
	// Output:
	// {"error":{"status":404,"code":"404.uri","title":"There is nothing at this address","detail":"empty"},"data":null}
	// <nil>
}
