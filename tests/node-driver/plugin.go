package main

import (
	"bufio"
	"encoding/gob"
	"encoding/json"
	"fmt"
	"net/rpc"
	"os"
	"os/exec"
	"strings"
	"time"
)

// The types that both sides register, under the names of rancher-machine's packages.

type flag interface{ name() string }

type StringFlag struct{ Name, Usage, EnvVar, Value string }
type IntFlag struct {
	Name, Usage, EnvVar string
	Value               int
}
type BoolFlag struct{ Name, Usage, EnvVar string }
type StringSliceFlag struct {
	Name, Usage, EnvVar string
	Value               []string
}

func (f *StringFlag) name() string      { return f.Name }
func (f *IntFlag) name() string         { return f.Name }
func (f *BoolFlag) name() string        { return f.Name }
func (f *StringSliceFlag) name() string { return f.Name }

type driverOptions interface{ String(key string) string }

type RPCFlags struct{ Values map[string]interface{} }

func (f *RPCFlags) String(key string) string { return fmt.Sprint(f.Values[key]) }

type state int

const (
	running = state(1)
	stopped = state(4)
)

func (s state) String() string {
	return []string{"", "Running", "Paused", "Saved", "Stopped", "Stopping", "Starting", "Error", "Timeout", "Not Found"}[s]
}

func registerTypes() {
	gob.RegisterName("*mcnflag.StringFlag", &StringFlag{})
	gob.RegisterName("*mcnflag.IntFlag", &IntFlag{})
	gob.RegisterName("*mcnflag.BoolFlag", &BoolFlag{})
	gob.RegisterName("*mcnflag.StringSliceFlag", &StringSliceFlag{})
	gob.RegisterName("*rpcdriver.RPCFlags", &RPCFlags{})
}

// plugin is one process of the driver, kept alive by heartbeats.
type plugin struct {
	command *exec.Cmd
	address string
	client  *rpc.Client
	machine string
}

// start runs the driver as rancher-machine does: with the token, and with all of our own arguments.
func start(driver string) *plugin {
	path, err := exec.LookPath("docker-machine-driver-" + driver)
	must(err)
	p := &plugin{command: exec.Command(path, os.Args...)}
	p.command.Args[0] = path
	p.command.Env = append(os.Environ(), "MACHINE_PLUGIN_TOKEN=42", "MACHINE_PLUGIN_DRIVER_NAME="+driver)
	out, err := p.command.StdoutPipe()
	must(err)
	must(p.command.Start())
	lines := bufio.NewScanner(out)
	address := make(chan string, 1)
	go func() {
		if lines.Scan() {
			address <- strings.TrimSpace(lines.Text())
		}
		close(address)
		for lines.Scan() {
			fmt.Fprintf(os.Stderr, "(%s) %s\n", p.machine, lines.Text())
		}
	}()
	select {
	case p.address = <-address:
	case <-time.After(10 * time.Second):
	}
	if p.address == "" {
		fail(1, "no address line within 10 s")
	}
	p.client = p.dial()
	var version int
	if p.call("GetVersion", nil, &version) != nil {
		must(p.client.Call("RpcServerDriver.GetVersion", struct{}{}, &version))
	}
	if version != 1 {
		fail(1, "the driver speaks version %d", version)
	}
	go func() {
		for p.call("Heartbeat", nil, nil) == nil {
			time.Sleep(5 * time.Second)
		}
	}()
	return p
}

func (p *plugin) dial() *rpc.Client {
	client, err := rpc.DialHTTP("tcp", p.address)
	must(err)
	return client
}

func (p *plugin) call(method string, argument, reply interface{}) error {
	if argument == nil {
		argument = struct{}{}
	}
	return p.client.Call("RPCServerDriver."+method, argument, reply)
}

func (p *plugin) text(method string) (string, error) {
	var reply string
	err := p.call(method, nil, &reply)
	return reply, err
}

// ask is for calls that cannot fail.
func (p *plugin) ask(method string) string {
	reply, err := p.text(method)
	must(err)
	return reply
}

func (p *plugin) state() (state, error) {
	var reply state
	err := p.call("GetState", nil, &reply)
	return reply, err
}

// configure tells what is known of the machine, and learns its name.
func (p *plugin) configure(raw []byte) {
	must(p.call("SetConfigRaw", raw, nil))
	p.machine = p.ask("GetMachineName")
}

func (p *plugin) configuration() json.RawMessage {
	var raw []byte
	must(p.call("GetConfigRaw", nil, &raw))
	return raw
}

func (p *plugin) flags() []flag {
	var flags []flag
	must(p.call("GetCreateFlags", nil, &flags))
	return flags
}

// close says goodbye; the process must end with 0.
func (p *plugin) close() {
	must(p.call("Close", nil, nil))
	if status := p.ended(); status != 0 {
		fail(1, "the driver ended with %d", status)
	}
}

func (p *plugin) ended() int {
	err := p.command.Wait()
	if exit, ok := err.(*exec.ExitError); ok {
		return exit.ExitCode()
	}
	must(err)
	return 0
}
