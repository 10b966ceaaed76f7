// Package quota is the budget: who may use how much of which GPUs. Its parts
// know one thing each. engine decides, from facts alone; pricing says what a
// request costs; fit finds the cards; jobs knows the kinds of jobs; ticket is
// the format of what a claim is allowed; webhook closes the gate; controller
// puts them together around the API.
package quota

//go:generate go generate -C tools ./...
