package adminapi

import "reflect"

// AnyOperation is an operation with any types.
type AnyOperation interface {
	// Describe returns the description.
	Describe() Description
	// Types returns the types of the request and of the response.
	Types() (request, response reflect.Type)
}

// Describe returns the description.
func (d Description) Describe() Description { return d }

// Types returns the types of the request and of the response.
func (Operation[Request, Response]) Types() (request, response reflect.Type) {
	return reflect.TypeFor[Request](), reflect.TypeFor[Response]()
}

// Operations returns all operations.
func Operations() []AnyOperation {
	return []AnyOperation{
		ListSinks(), ShowSink(), PauseSink(), ResumeSink(), RetrySink(), ReplaySink(), TestSink(), ForgetSink(),
		ListDeadLetters(), ShowDeadLetter(), ReplayDeadLetters(), DropDeadLetters(),
		ListSources(), ListConnections(), ListAudit(),
		ListKeys(), CreateKey(), RotateKey(), RevokeKey(), EraseAccount(),
		ListInventory(), ImportInventory(),
	}
}
