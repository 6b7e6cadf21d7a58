// The side of rancher-machine, played with Go's own net/rpc and encoding/gob, which Rancher uses too: it starts the plugin
// it is given, calls every method with its real argument and reply types, and says what was not as the contract has it.
//
//	node-driver-peer <plugin> <store> < kubeconfig
//
// Exit status 0 when everything was as expected; else 1, with a line for each thing that was not.
package main

import (
	"bufio"
	"encoding/gob"
	"encoding/json"
	"fmt"
	"io"
	"net/rpc"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"time"
)

// The types that both sides register, under the names of rancher-machine's packages.

type flag interface{ Name_() string }

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

func (f *StringFlag) Name_() string      { return f.Name }
func (f *IntFlag) Name_() string         { return f.Name }
func (f *BoolFlag) Name_() string        { return f.Name }
func (f *StringSliceFlag) Name_() string { return f.Name }

type driverOptions interface{ String(key string) string }

type RPCFlags struct{ Values map[string]interface{} }

func (f *RPCFlags) String(key string) string { return fmt.Sprint(f.Values[key]) }

type state int

var failures int

func expect(what string, got, want interface{}) {
	if !reflect.DeepEqual(got, want) {
		failures++
		fmt.Printf("%s: got %#v, want %#v\n", what, got, want)
	}
}

func must(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

type plugin struct {
	command *exec.Cmd
	address string
	lines   chan string
}

func start(path string, kubeconfig string) *plugin {
	command := exec.Command(path, "create", "--driver", "harvester", "--some-flag-of-ours", "demo-1")
	command.Env = append(os.Environ(), "MACHINE_PLUGIN_TOKEN=42", "MACHINE_PLUGIN_DRIVER_NAME=harvester",
		"HARVESTER_KUBECONFIG_CONTENT="+kubeconfig)
	out, err := command.StdoutPipe()
	must(err)
	must(command.Start())
	scanner := bufio.NewScanner(out)
	if !scanner.Scan() {
		fmt.Println("no address line")
		os.Exit(1)
	}
	p := &plugin{command: command, address: strings.TrimSpace(scanner.Text()), lines: make(chan string, 1000)}
	go func() {
		for scanner.Scan() {
			p.lines <- scanner.Text()
		}
		close(p.lines)
	}()
	return p
}

func (p *plugin) dial() *rpc.Client {
	client, err := rpc.DialHTTP("tcp", p.address)
	must(err)
	return client
}

func (p *plugin) ends(what string, code int) {
	err := p.command.Wait()
	got := 0
	if exit, ok := err.(*exec.ExitError); ok {
		got = exit.ExitCode()
	}
	expect(what+": exit status", got, code)
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func call(c *rpc.Client, method string, argument, reply interface{}) error {
	if argument == nil {
		argument = struct{}{}
	}
	return c.Call("RPCServerDriver."+method, argument, reply)
}

func ask(c *rpc.Client, method string) string {
	var reply string
	must2(method, call(c, method, nil, &reply))
	return reply
}

func must2(what string, err error) {
	expect(what+": error", text(err), "")
}

func options(kubeconfig string, flags []flag) driverOptions {
	values := map[string]interface{}{
		"driver": "harvester", "swarm-master": false, "swarm-host": "tcp://0.0.0.0:3376", "swarm-discovery": "",
		"engine-opt": []string{"a", "b"}, "custom-install-script": "/run/x", "nothing": nil,
	}
	for _, f := range flags {
		switch f := f.(type) {
		case *StringFlag:
			values[f.Name] = f.Value
		case *IntFlag:
			values[f.Name] = f.Value
		case *BoolFlag:
			values[f.Name] = false
		}
	}
	values["harvester-kubeconfig-content"] = kubeconfig
	values["harvester-vm-namespace"] = "shop"
	values["harvester-cluster-name"] = "demo"
	values["harvester-disk-info"] = `{"disks":[{"imageName":"default/leap","bootOrder":1,"size":40}]}`
	values["harvester-network-info"] = `{"interfaces":[{"networkName":"default/vlan1"}]}`
	return &RPCFlags{Values: values}
}

func main() {
	gob.RegisterName("*mcnflag.StringFlag", &StringFlag{})
	gob.RegisterName("*mcnflag.IntFlag", &IntFlag{})
	gob.RegisterName("*mcnflag.BoolFlag", &BoolFlag{})
	gob.RegisterName("*mcnflag.StringSliceFlag", &StringSliceFlag{})
	gob.RegisterName("*rpcdriver.RPCFlags", &RPCFlags{})
	path, store := os.Args[1], os.Args[2]
	content, err := io.ReadAll(os.Stdin)
	must(err)
	kubeconfig := string(content)

	stored := create(path, store, kubeconfig)
	existing(path, kubeconfig, stored)
	remove(path, kubeconfig, stored)
	if failures > 0 {
		os.Exit(1)
	}
}

func greet(c *rpc.Client, raw []byte, name string) {
	var version int
	must2("GetVersion", call(c, "GetVersion", nil, &version))
	expect("version", version, 1)
	must2("SetConfigRaw", call(c, "SetConfigRaw", raw, nil))
	expect("GetMachineName", ask(c, "GetMachineName"), name)
	expect("DriverName", ask(c, "DriverName"), "harvester")
}

// create plays `rancher-machine create`, with a second connection and a heartbeat beside it.
func create(path, store, kubeconfig string) []byte {
	p := start(path, kubeconfig)
	c, heart := p.dial(), p.dial()
	done := make(chan bool)
	go func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(2 * time.Second):
				must2("Heartbeat", call(heart, "Heartbeat", nil, nil))
			}
		}
	}()
	raw, _ := json.Marshal(map[string]interface{}{"MachineName": "demo-pool1-x7k2m-9d4tq", "StorePath": store,
		"SSHPort": 0, "SSHUser": "", "SwarmMaster": false})
	greet(c, raw, "demo-pool1-x7k2m-9d4tq")
	var flags []flag
	for i := 0; i < 3; i++ {
		flags = nil
		must2("GetCreateFlags", call(c, "GetCreateFlags", nil, &flags))
	}
	expect("flags", len(flags), 35)
	expect("first flag", flags[0].Name_(), "harvester-kubeconfig-content")
	expect("flag 31", flags[30], &IntFlag{Name: "harvester-reserved-memory-size", EnvVar: "HARVESTER_RESERVED_MEMORY_SIZE",
		Value: -1, Usage: flags[30].(*IntFlag).Usage})

	// wrong in several ways: all said, one line, no quotes
	bad := options(kubeconfig, flags)
	bad.(*RPCFlags).Values["harvester-cpu-count"] = 0
	bad.(*RPCFlags).Values["harvester-enable-secure-boot"] = true
	refused := text(call(c, "SetConfigFromFlags", &bad, nil))
	expect("both faults", strings.Contains(refused, "at least 1 CPU") && strings.Contains(refused, "needs harvester-enable-efi"), true)
	expect("one plain line", strings.ContainsAny(refused, "\"\n"), false)

	given := options(kubeconfig, flags)
	must2("SetConfigFromFlags", call(c, "SetConfigFromFlags", &given, nil))
	must2("PreCreateCheck", call(c, "PreCreateCheck", nil, nil))
	var saved []byte
	must2("GetConfigRaw", call(c, "GetConfigRaw", nil, &saved))
	// while Create runs, others are answered
	making := c.Go("RPCServerDriver.Create", struct{}{}, nil, nil)
	expect("a getter beside Create", ask(c, "GetSSHUsername"), "root")
	expect("a getter on another connection", ask(heart, "GetMachineName"), "demo-pool1-x7k2m-9d4tq")
	must2("Create", (<-making.Done).Error)
	must2("GetConfigRaw", call(c, "GetConfigRaw", nil, &saved))
	var config struct {
		IPAddress, SSHKeyPath, SSHUser, ServerVersion string
		SSHPort                                       int
	}
	must(json.Unmarshal(saved, &config))
	var now state
	must2("GetState", call(c, "GetState", nil, &now))
	expect("state", now, state(1))
	expect("GetIP", ask(c, "GetIP"), config.IPAddress)
	expect("GetSSHHostname", ask(c, "GetSSHHostname"), config.IPAddress)
	expect("GetURL", ask(c, "GetURL"), "tcp://"+config.IPAddress+":2376")
	expect("GetSSHKeyPath", ask(c, "GetSSHKeyPath"), config.SSHKeyPath)
	var port int
	must2("GetSSHPort", call(c, "GetSSHPort", nil, &port))
	expect("port", port, 22)
	key, err := os.Stat(config.SSHKeyPath)
	must(err)
	expect("mode of the key", key.Mode().Perm(), os.FileMode(0o600))
	var none string
	expect("GetIPv6", text(call(c, "GetIPv6", nil, &none)), "IPv6 address is not set")
	expect("Upgrade", text(call(c, "Upgrade", nil, nil)), "rpc: can't find method RPCServerDriver.Upgrade")
	expect("no such service", text(c.Call("Other.Close", struct{}{}, nil)), "rpc: can't find service Other.Close")
	expect("no dot", text(c.Call("Close", struct{}{}, nil)), "rpc: service/method request ill-formed: Close")
	expect("argument of another type", text(call(c, "SetConfigRaw", 7, nil)) != "", true)
	expect("the connection goes on", ask(c, "DriverName"), "harvester")
	done <- true
	must(heart.Close())
	must2("Close", call(c, "Close", nil, nil))
	p.ends("create", 0)
	return saved
}

// existing plays stop, start, restart and kill of a stored machine.
func existing(path, kubeconfig string, stored []byte) {
	p := start(path, kubeconfig)
	c := p.dial()
	greet(c, stored, "demo-pool1-x7k2m-9d4tq")
	for _, step := range []struct {
		method string
		then   state
	}{{"Stop", 4}, {"Start", 1}, {"Restart", 1}, {"Kill", 4}} {
		must2("Heartbeat", call(c, "Heartbeat", nil, nil))
		must2(step.method, call(c, step.method, nil, nil))
		var now state
		must2("GetState", call(c, "GetState", nil, &now))
		expect("state after "+step.method, now, step.then)
	}
	var url string
	expect("URL of a stopped machine", text(call(c, "GetURL", nil, &url)), "Host is not running")
	// the old name of the service, from an old client
	must2("Close", c.Call("RpcServerDriver.Close", struct{}{}, nil))
	p.ends("existing", 0)
}

// remove plays `rancher-machine rm`, with a client that goes away without a word afterwards.
func remove(path, kubeconfig string, stored []byte) {
	p := start(path, kubeconfig)
	c := p.dial()
	greet(c, stored, "demo-pool1-x7k2m-9d4tq")
	must2("Remove", call(c, "Remove", nil, nil))
	must2("Remove again", call(c, "Remove", nil, nil))
	var now state
	gone := text(call(c, "GetState", nil, &now))
	expect("state of what is gone", strings.Contains(gone, "not found"), true)
	must(c.Close())
	p.ends("a client that went away", 1)
}
