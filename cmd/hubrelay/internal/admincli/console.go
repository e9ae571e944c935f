package admincli

import (
	"context"
	"errors"
	"fmt"
	"html"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/consoleproxy"
	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
	"github.com/hubrelay/hubrelay/internal/adminapi"
)

type consoleFlags struct {
	adminFlags
	noBrowser bool
	port      uint16
}

func newConsole(std term.Streams) *cobra.Command {
	var f consoleFlags
	cmd := &cobra.Command{
		Use:   "console",
		Short: "Open the web console of a running relay",
		Long: `Opens the web console of a running relay in a browser of this machine, until it is interrupted. It listens on a
loopback port and signs in with a link that works once, within ten minutes. The browser has the permissions of this command:
all of them on the admin socket, and over TCP the ones that the token in HUBRELAY_ADMIN_TOKEN has.

For a relay on another machine, forward a port with ssh and open the link on your side. If the relay has an admin listener
(admin.listen), you can also open its address in a browser and sign in with a token.

` + adminHelp,
		Example: `  hubrelay console
  ssh -L 9999:127.0.0.1:9999 relay hubrelay console --no-browser --port 9999`,
		Args: command.ExactNamedArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error { return runConsole(cmd.Context(), std, &f) },
	}
	cmd.Flags().BoolVar(&f.noBrowser, "no-browser", false, "only print the link")
	cmd.Flags().Uint16Var(&f.port, "port", 0, "loopback port to listen on (default: a free one)")
	f.registerConnection(cmd, std)
	return cmd
}

func runConsole(ctx context.Context, std term.Streams, f *consoleFlags) error {
	conn, err := f.connect(std)
	if err != nil {
		return err
	}
	session, err := callRelay(ctx, conn, adminapi.ShowSession(), adminapi.Empty{})
	if err != nil {
		return err
	}
	upstream, err := conn.NewProxy()
	if err != nil {
		return err
	}
	listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(f.port)})
	if err != nil {
		return fmt.Errorf("listen for the browser: %w; use another --port", err)
	}
	proxy := consoleproxy.New(listener.Addr(), upstream)
	server := &http.Server{Handler: proxy, ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	_, err = fmt.Fprintf(std.Out, "Console of %s (%s) as %s with the role %s:\n\n  %s\n\nThe link works once, within ten minutes. Press Ctrl+C to close the console.\n",
		term.Sanitize(session.Node), term.Sanitize(conn.address), term.Sanitize(session.Name), term.Sanitize(string(session.Role)),
		proxy.URL())
	if err != nil {
		return err
	}
	if !f.noBrowser {
		remove, err := openBrowser(ctx, std, proxy.URL())
		if err != nil {
			_, _ = fmt.Fprintf(std.Err, "no browser was opened (%v): open the link yourself\n", err)
		}
		defer remove()
	}
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// openBrowser opens a private file that leads to a link, because other users of the machine can read the arguments of
// processes. The caller removes the file at the end.
func openBrowser(ctx context.Context, std term.Streams, link string) (remove func(), err error) {
	if runtime.GOOS == "linux" && std.Getenv("DISPLAY") == "" && std.Getenv("WAYLAND_DISPLAY") == "" {
		return func() {}, errors.New("there is no display")
	}
	dir, err := os.MkdirTemp("", "hubrelay-console-")
	if err != nil {
		return func() {}, err
	}
	remove = func() { _ = os.RemoveAll(dir) }
	file := filepath.Join(dir, "console.html")
	page := fmt.Sprintf("<!doctype html>\n<meta http-equiv=\"refresh\" content=\"0; url=%[1]s\">\n<a href=\"%[1]s\">Open the console</a>\n",
		html.EscapeString(link))
	if err := os.WriteFile(file, []byte(page), 0o600); err != nil {
		return remove, err
	}
	name := "xdg-open"
	if runtime.GOOS == "darwin" {
		name = "open"
	}
	cmd := exec.CommandContext(ctx, name, file)
	if err := cmd.Start(); err != nil {
		return remove, err
	}
	go func() {
		if err := cmd.Wait(); err != nil && ctx.Err() == nil {
			_, _ = fmt.Fprintf(std.Err, "the browser could not be opened (%s: %v): open the link yourself\n", name, err)
		}
	}()
	return remove, nil
}
