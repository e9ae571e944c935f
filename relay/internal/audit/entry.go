package audit

import "time"

// Entry is one action.
type Entry struct {
	// ID is the ID of the entry in Redis. Only [Store.Search] sets it.
	ID   string    `json:"-"`
	Time time.Time `json:"time"`
	// Actor is "key NAME", "admin NAME", "configuration" or "relay". On the admin socket, NAME is "user UID (LOGIN)".
	// Actor is empty if it is unknown.
	Actor string `json:"actor,omitempty"`
	// AccountID is the account of the key. It is empty for other actors.
	AccountID string `json:"account_id,omitempty"`
	// Owner is the account of the key, or the key: see [auth.Key.Owner]. It has a share of the entries for rejected
	// actions, and is not stored.
	Owner string `json:"-"`
	// Address is the address of the client. It is empty for a unix socket.
	Address string `json:"address,omitempty"`
	Action  Action `json:"action"`
	// Target names the object of the action, such as a sink or a path. Target and Address are empty in an entry for several
	// rejected actions: of a key with too many targets, or of unknown actors beyond a rate.
	Target string `json:"target,omitempty"`
	// Result is [ResultOK], the code of an error, or [ResultRejected].
	Result string `json:"result"`
	// Detail describes the action, such as the text of an error. It contains no secrets.
	Detail string `json:"detail,omitempty"`
	// Repeated is the number of equal entries that this entry summarizes. They followed an entry without this number,
	// in the ten seconds before Time.
	Repeated int `json:"repeated,omitempty"`
}

// Action names what was done.
type Action string

// The actions that are recorded outside the admin API. An action of the admin API is named by its path, such as
// "sinks.pause".
const (
	// ActionAuthenticate is a failed authentication.
	ActionAuthenticate Action = "authenticate"
	// ActionAdminAuthenticate is a sign-in to the console, or a failed authentication at the admin listener.
	ActionAdminAuthenticate Action = "admin.authenticate"
	// ActionRevokeToken is the revocation of a stream token.
	ActionRevokeToken Action = "token.revoke"
	// ActionPublish is a request to publish that was refused. Others are not recorded.
	ActionPublish Action = "publish"
	// ActionRequest is another request that exceeds a quota.
	ActionRequest Action = "request"
	// ActionAddKey, ActionChangeKey and ActionRemoveKey are changes of API keys in the configuration.
	ActionAddKey    Action = "keys.add"
	ActionChangeKey Action = "keys.change"
	ActionRemoveKey Action = "keys.remove"
	// ActionReloadKeys is a change in a key file.
	ActionReloadKeys Action = "keys.reload"
	// ActionReloadConfig is a changed configuration.
	ActionReloadConfig Action = "config.reload"
	// ActionDisableSink is a sink that the relay disabled.
	ActionDisableSink Action = "sinks.disable"
	// ActionCreateJob is a request to migrate an instance.
	ActionCreateJob Action = "jobs.create"
)

// Actions returns the actions that are recorded outside the admin API.
func Actions() []Action {
	return []Action{
		ActionAuthenticate, ActionAdminAuthenticate, ActionRevokeToken, ActionPublish, ActionRequest, ActionAddKey,
		ActionChangeKey, ActionRemoveKey, ActionReloadKeys, ActionReloadConfig, ActionDisableSink, ActionCreateJob,
	}
}

// ResultOK is the result of an action that succeeded.
const ResultOK = "ok"

// ResultRejected is the result of a configuration that was not applied.
const ResultRejected = "rejected"

// Recorder records actions. Record does not block. It may be called concurrently.
type Recorder interface{ Record(e Entry) }

// Discard records nothing.
type Discard struct{}

// Record implements [Recorder].
func (Discard) Record(Entry) {}

// Filter selects entries. Empty fields select all.
type Filter struct {
	Actor, AccountID, Address, Target string
	// Action also selects the actions below it: "sinks" selects "sinks.pause".
	Action string
	// Since excludes older entries.
	Since time.Time
	// After is next of an earlier search, which this one continues. Empty means the newest entries.
	After string
	// Limit is the maximum number of entries. It is at least 1.
	Limit int
}
