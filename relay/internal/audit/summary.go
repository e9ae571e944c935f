package audit

import (
	"strings"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

const (
	// summaryWindow is the time in which repeated entries become one.
	summaryWindow = 10 * time.Second
	// maxSummaries is the maximum number of open windows. Other entries are not summarized.
	maxSummaries = 4096
	// maxRejectedTargets is the maximum number of windows for actions without effect that differ only in target and address. A
	// client can choose any target. Further ones share one window without target and address.
	maxRejectedTargets = 20
	// maxWithoutEffect is the maximum number of windows for actions without effect. Further ones of keys share windows without key,
	// target and address, because an identity provider can issue any number of credentials to an account.
	maxWithoutEffect = 400
	// maxWithoutEffectPerOwner is the share of an account, which has any number of keys.
	maxWithoutEffectPerOwner = 100
	// unknownPerSecond and unknownBurst limit the rejected actions without an actor, such as failed authentications, that are
	// recorded one by one. There is a limit per address, but an attacker may have any number of addresses.
	unknownPerSecond = 20
	unknownBurst     = 1000
	// summaryTick is the time between two checks for ended windows.
	summaryTick = time.Second
)

// The start of the actor of an API key, and of a token of the admin API.
const (
	keyActor   = "key "
	adminActor = "admin "
	// manyKeys is the actor of entries that many keys share.
	manyKeys = keyActor + "*"
)

// isSummarized reports whether repeated entries become one. An account can cause actions of its API keys at any rate. Every
// token of the admin API, also that of a viewer, can cause authentications and actions that its role does not permit.
func isSummarized(e *Entry) bool {
	return strings.HasPrefix(e.Actor, keyActor) || strings.HasPrefix(e.Actor, adminActor) && isWithoutEffect(e)
}

// isWithoutEffect reports whether an action has changed nothing, so a client can repeat it with any number of targets.
func isWithoutEffect(e *Entry) bool {
	return e.Action == ActionAdminAuthenticate || e.Result == string(relay.CodePermissions) ||
		e.Result != ResultOK && strings.HasPrefix(e.Actor, keyActor)
}

// isRejectedUnknown reports whether an entry is a rejected action of an unknown actor.
func isRejectedUnknown(e *Entry) bool { return e.Actor == "" && e.Result != ResultOK }

// summaries counts repeated entries. The zero value is ready, and may be used concurrently.
type summaries struct {
	mu sync.Mutex
	// windows are the open windows by their entry without its time and detail. An account can cause any number of details.
	windows map[Entry]*window
	// targets counts the windows of actions without effect by their entry without target and address, owners by their owner, and
	// withoutEffect all of them.
	targets       map[Entry]int
	owners        map[string]int
	withoutEffect int
}

// window counts the entries that repeat the first one until end.
type window struct {
	end      time.Time
	repeated int
}

// windowID returns the entry of a window, without its time and detail.
func windowID(e Entry) Entry {
	e.Time, e.Detail = time.Time{}, ""
	return e
}

func withoutTarget(e Entry) Entry {
	e.Target, e.Address = "", ""
	return e
}

// add writes e if it is the first of a window, and counts it otherwise. write must not block.
func (s *summaries) add(e Entry, now time.Time, write func(*Entry)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := windowID(e)
	if s.windows[id] == nil && isWithoutEffect(&id) {
		isFull := s.withoutEffect >= maxWithoutEffect || len(s.windows) >= maxSummaries
		isKey := strings.HasPrefix(e.Actor, keyActor)
		switch {
		case s.targets[withoutTarget(id)] >= maxRejectedTargets:
			e.Target, e.Address = "", ""
		case isKey && isFull:
			e.Actor, e.AccountID, e.Owner, e.Target, e.Address = manyKeys, "", "", "", ""
		case isKey && s.owners[e.Owner] >= maxWithoutEffectPerOwner:
			e.Actor, e.Target, e.Address = manyKeys, "", ""
		}
		id = windowID(e)
	}
	w := s.windows[id]
	if w != nil && now.Before(w.end) {
		w.repeated++
		return
	}
	if w != nil {
		s.endWindow(id, w, now, write)
	}
	if len(s.windows) < maxSummaries || id.Actor == manyKeys {
		if s.windows == nil {
			s.windows, s.targets, s.owners = make(map[Entry]*window), make(map[Entry]int), make(map[string]int)
		}
		if isWithoutEffect(&id) {
			s.targets[withoutTarget(id)]++
			s.owners[id.Owner]++
			s.withoutEffect++
		}
		s.windows[id] = &window{end: now.Add(summaryWindow)}
	}
	write(&e)
}

// end ends all windows, or those whose time has passed. When it returns, their summaries have been written, even if a
// concurrent call wrote them.
func (s *summaries) end(now time.Time, all bool, write func(*Entry)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, w := range s.windows {
		if all || !now.Before(w.end) {
			s.endWindow(id, w, now, write)
		}
	}
}

// endWindow removes a window and writes its summary. The summary has the time at which it is written, because a search
// relies on the order of the times.
func (s *summaries) endWindow(id Entry, w *window, now time.Time, write func(*Entry)) {
	delete(s.windows, id)
	if isWithoutEffect(&id) {
		s.withoutEffect--
		if s.owners[id.Owner]--; s.owners[id.Owner] == 0 {
			delete(s.owners, id.Owner)
		}
		group := withoutTarget(id)
		if s.targets[group]--; s.targets[group] == 0 {
			delete(s.targets, group)
		}
	}
	if w.repeated == 0 {
		return
	}
	id.Time, id.Repeated = entryTime(now), w.repeated
	write(&id)
}
