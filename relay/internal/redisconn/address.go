package redisconn

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// errAddress contains no part of the address, because any part may belong to a password that is not escaped.
var errAddress = errors.New("redis.url cannot be read: write redis://[user:password@]host:port[/db], rediss://…, " +
	"unix:///path[?db=n], redis+sentinel://[:password@]host:port[,host:port]/master[/db] " +
	"or redis+cluster://host:port[,host:port], and percent-encode special characters of a password")

// parseAddress parses a redis.url into options of a client.
//
//	redis://[user:password@]host[:port][/db]                    one server
//	rediss://…                                                  the same over TLS
//	unix://[user:password@]/path/to/socket[?db=n]               one server on this machine
//	redis+sentinel://[user:password@]host:port[,…]/master[/db]  Sentinel; optional parameters:
//	                                                            sentinel_username, sentinel_password, tls=true
//	redis+cluster://[user:password@]host:port[,…]               Redis Cluster; optional parameter: tls=true
func parseAddress(address string) (*redis.UniversalOptions, error) {
	scheme, rest, ok := strings.Cut(address, "://")
	if !ok {
		return nil, errAddress
	}
	// net/url supports only one host, so the list of hosts is parsed here.
	rest, query, _ := strings.Cut(rest, "?")
	params, err := url.ParseQuery(query)
	if err != nil {
		return nil, errAddress
	}
	var authority, path string
	if i := strings.IndexByte(rest, '/'); i >= 0 {
		authority, path = rest[:i], rest[i+1:]
	} else {
		authority = rest
	}
	o := &redis.UniversalOptions{}
	hosts := authority
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		hosts = authority[i+1:]
		if err := setCredentials(o, authority[:i]); err != nil {
			return nil, err
		}
	}
	if err := setConnection(o, scheme, hosts, path, params); err != nil {
		return nil, err
	}
	for name := range params {
		return nil, fmt.Errorf("redis.url has the parameter %q, which %s:// does not support", name, scheme)
	}
	return o, nil
}

func setCredentials(o *redis.UniversalOptions, userinfo string) error {
	user, password, _ := strings.Cut(userinfo, ":")
	var err1, err2 error
	o.Username, err1 = url.PathUnescape(user)
	o.Password, err2 = url.PathUnescape(password)
	if err1 != nil || err2 != nil {
		return errAddress
	}
	return nil
}

// setConnection sets addresses, database and TLS, and deletes the parameters that it used from params.
func setConnection(o *redis.UniversalOptions, scheme, hosts, path string, params url.Values) error {
	var db string
	switch scheme {
	case "redis", "rediss":
		db = path
		o.Addrs = hostList(hosts)
		if len(o.Addrs) == 0 {
			o.Addrs = []string{"localhost:6379"}
		}
		if len(o.Addrs) > 1 {
			return errors.New("redis.url names several hosts: use redis+sentinel:// or redis+cluster://")
		}
	case "unix":
		if hosts != "" || path == "" {
			return errAddress
		}
		o.Addrs, db = []string{"/" + path}, popParam(params, "db")
	case "redis+sentinel":
		o.MasterName, db, _ = strings.Cut(path, "/")
		o.Addrs = hostList(hosts)
		o.SentinelUsername = popParam(params, "sentinel_username")
		o.SentinelPassword = popParam(params, "sentinel_password")
		if o.MasterName == "" || len(o.Addrs) == 0 {
			return errAddress
		}
	case "redis+cluster":
		o.Addrs, o.IsClusterMode = hostList(hosts), true
		if len(o.Addrs) == 0 || path != "" {
			return errAddress
		}
	default:
		return errAddress
	}
	if scheme == "rediss" || (strings.HasPrefix(scheme, "redis+") && popParam(params, "tls") == "true") {
		o.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if db != "" {
		n, err := strconv.Atoi(db)
		if err != nil || n < 0 {
			return errAddress
		}
		o.DB = n
	}
	return nil
}

func popParam(params url.Values, name string) string {
	v := params.Get(name)
	delete(params, name)
	return v
}

// hostList splits hosts at commas and adds missing ports and names.
func hostList(hosts string) []string {
	var out []string
	for h := range strings.SplitSeq(hosts, ",") {
		if h == "" {
			continue
		}
		if i := strings.LastIndexByte(h, ':'); i < 0 || strings.HasSuffix(h, "]") {
			h += ":6379"
		} else if i == 0 {
			h = "localhost" + h
		}
		out = append(out, h)
	}
	return out
}
