package adminapi

// EraseResult counts what [EraseAccount] deleted.
type EraseResult struct {
	Inbox       int `json:"inbox"`
	Log         int `json:"log"`
	Waiting     int `json:"waiting"`
	Retrying    int `json:"retrying"`
	DeadLetters int `json:"dead_letters"`
	Quarantine  int `json:"quarantine"`
	// History is the number of deleted records of attempts and of clients.
	History int `json:"history"`
	// SharedDeadLetters were kept, because they also contain events of other accounts.
	SharedDeadLetters int `json:"shared_dead_letters"`
	// Remaining describes what cannot be deleted.
	Remaining []string `json:"remaining"`
}

// EraseAccount deletes the events of an account.
func EraseAccount() Operation[Empty, EraseResult] {
	return adminOperation[Empty, EraseResult]("accounts.erase", "/api/accounts/{name}/erase",
		"Delete the events of an account")
}
