package webhook

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"time"

	"golang.org/x/net/proxy"

	"github.com/hubrelay/hubrelay/internal/netdeadline"
	"github.com/hubrelay/hubrelay/internal/netguard"
	"github.com/hubrelay/hubrelay/relay"
)

const (
	dialTimeout = 10 * time.Second
	// maxProxyResponse is the maximum size of the header of a proxy's response in bytes.
	maxProxyResponse = 64 << 10
	// maxTries is the maximum number of addresses of a target to try through a proxy.
	maxTries = 4
)

// proxyDialer connects to targets through the configured proxy. The guard checks the target's address after DNS, and
// the proxy receives that address. A proxy that resolved the name again could be directed to an internal address. The
// address of the proxy is not checked, because only the configuration sets it.
type proxyDialer struct {
	url      *url.URL
	guard    *netguard.Guard
	resolver netguard.Resolver
	roots    *x509.CertPool
}

// parseProxy checks the URL of a proxy. Its errors follow the name of the key and contain no part of the URL.
func parseProxy(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, errors.New("is not a URL")
	}
	port := map[string]string{"http": "80", "https": "443", "socks5": "1080"}[u.Scheme]
	switch {
	case u.Scheme == "socks5h":
		return nil, errors.New(
			"must start with socks5://: names are resolved before the proxy is used, because the addresses are " +
				"judged",
		)
	case port == "":
		return nil, errors.New("must start with http://, https:// or socks5://")
	case u.Hostname() == "":
		return nil, errors.New("has no host")
	case u.Path != "" && u.Path != "/", u.RawQuery != "", u.Fragment != "":
		return nil, errors.New("must end after host and port")
	}
	if p := u.Port(); p != "" {
		if n, err := strconv.ParseUint(p, 10, 16); err != nil || n == 0 {
			return nil, errors.New("has a port outside 1 to 65535")
		}
		port = p
	}
	if password, _ := u.User.Password(); u.Scheme == "socks5" && (len(u.User.Username()) > 255 || len(password) > 255) {
		return nil, errors.New("has a user or a password of more than 255 bytes")
	}
	u.Host = net.JoinHostPort(u.Hostname(), port)
	return u, nil
}

func (c *Config) parsedProxy() (*url.URL, error) {
	if c.Proxy == "" {
		return nil, nil
	}
	u, err := parseProxy(c.Proxy)
	if err != nil {
		return nil, &relay.FieldError{Field: "proxy", Problem: err.Error()}
	}
	return u, nil
}

// DialContext connects to a target, given as host and port. It is for [http.Transport].
func (p *proxyDialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := p.dial(ctx, address)
	if err != nil {
		// Errors of a dial are generated on this machine and contain no text of the remote end.
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	return conn, nil
}

func (p *proxyDialer) dial(ctx context.Context, address string) (net.Conn, error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return nil, errors.New("the target has no port")
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return nil, errors.New("the port of the target is not a number")
	}
	addrs, err := p.guard.Resolve(ctx, p.resolver, host)
	if err != nil {
		return nil, err
	}
	for _, addr := range addrs[:min(len(addrs), maxTries)] {
		var conn net.Conn
		if conn, err = p.dialThrough(ctx, netip.AddrPortFrom(addr, uint16(port))); err == nil {
			return conn, nil
		}
	}
	return nil, fmt.Errorf("proxy %s: %w", p.url.Host, err)
}

// dialThrough connects to the proxy, and through it to one address.
func (p *proxyDialer) dialThrough(ctx context.Context, target netip.AddrPort) (net.Conn, error) {
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}
	conn, err := dialer.DialContext(ctx, "tcp", p.url.Host)
	if err != nil {
		return nil, err
	}
	// Reads and writes do not take a context, so set a deadline.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	ready, err := p.runHandshake(ctx, conn, target)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = conn.Close()
		return nil, netdeadline.Cause(ctx, err)
	}
	return ready, nil
}

func (p *proxyDialer) runHandshake(ctx context.Context, conn net.Conn, target netip.AddrPort) (net.Conn, error) {
	if p.url.Scheme == "socks5" {
		return conn, p.connectSOCKS(ctx, conn, target)
	}
	if p.url.Scheme == "https" {
		secure := tls.Client(conn, &tls.Config{
			MinVersion: tls.VersionTLS12, ServerName: p.url.Hostname(), RootCAs: p.roots,
			NextProtos: []string{"http/1.1"},
		})
		if err := secure.HandshakeContext(ctx); err != nil {
			return nil, fmt.Errorf("handshake: %w", err)
		}
		conn = secure
	}
	return conn, p.connect(conn, target)
}

// connect opens a tunnel through an HTTP proxy (RFC 9110, section 9.3.6). Errors contain only the status of the proxy.
func (p *proxyDialer) connect(conn net.Conn, target netip.AddrPort) error {
	text := "CONNECT " + target.String() + " HTTP/1.1\r\nHost: " + target.String() + "\r\n"
	if user := p.url.User; user != nil {
		password, _ := user.Password()
		text += "Proxy-Authorization: Basic " +
			base64.StdEncoding.EncodeToString([]byte(user.Username()+":"+password)) + "\r\n"
	}
	if _, err := io.WriteString(conn, text+"\r\n"); err != nil {
		return err
	}
	response := bufio.NewReader(io.LimitReader(conn, maxProxyResponse))
	resp, err := http.ReadResponse(response, &http.Request{Method: http.MethodConnect})
	switch {
	case err != nil:
		return errors.New("no HTTP response to CONNECT")
	case resp.StatusCode/100 != 2:
		_ = resp.Body.Close()
		return fmt.Errorf("response to CONNECT has the status %d", resp.StatusCode)
	case response.Buffered() > 0:
		return errors.New("the proxy sent data before the target")
	}
	return nil
}

// connectSOCKS connects through a SOCKS5 proxy.
func (p *proxyDialer) connectSOCKS(ctx context.Context, conn net.Conn, target netip.AddrPort) error {
	var auth *proxy.Auth
	if user := p.url.User; user != nil {
		password, _ := user.Password()
		auth = &proxy.Auth{User: user.Username(), Password: password}
	}
	dialer, err := proxy.SOCKS5("tcp", p.url.Host, auth, nil)
	if err != nil {
		return err
	}
	socks, ok := dialer.(interface {
		DialWithConn(ctx context.Context, conn net.Conn, network, address string) (net.Addr, error)
	})
	if !ok {
		return fmt.Errorf("a %T cannot use an open connection", dialer)
	}
	_, err = socks.DialWithConn(ctx, conn, "tcp", target.String())
	return err
}
