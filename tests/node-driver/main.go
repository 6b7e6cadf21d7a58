// The side of rancher-machine, played with Go's own net/rpc and encoding/gob, which it uses too: each of its commands as
// the calls that it is known to make, in their order, from as many processes of the driver.
//
//	rancher-machine [--storage-path DIR] create --driver harvester [--custom-install-script FILE] [FLAGS] NAME
//	rancher-machine [--storage-path DIR] ls [-q] | ip | url | inspect | status | ssh | start | stop | restart | kill NAME
//	rancher-machine [--storage-path DIR] rm [-y] [--update-config] NAME
//	rancher-machine [--storage-path DIR] probe NAME      calls every method of a machine that it makes and removes
//
// Exit status as rancher-machine's: 3 where PreCreateCheck fails, 4 for the state of what is not there, else 0 or 1.
// There is no guest behind a simulated machine: `ssh` prints what it would run, and nothing waits for Docker.
package main

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// host is what config.json holds.
type host struct {
	ConfigVersion int
	Driver        json.RawMessage
	DriverName    string
	HostOptions   map[string]interface{}
	Name          string
}

var storage = filepath.Join(os.Getenv("HOME"), ".docker", "machine")

func fail(status int, format string, arguments ...interface{}) {
	fmt.Fprintf(os.Stderr, format+"\n", arguments...)
	os.Exit(status)
}

func must(err error) {
	if err != nil {
		fail(1, "%v", err)
	}
}

func folder(machine string) string { return filepath.Join(storage, "machines", machine) }

func (h *host) save() {
	must(os.MkdirAll(folder(h.Name), 0o700))
	text, err := json.MarshalIndent(h, "", "    ")
	must(err)
	must(os.WriteFile(filepath.Join(folder(h.Name), "config.json"), text, 0o600))
}

// base is what rancher-machine knows of a new machine.
func base(machine string) []byte {
	raw, err := json.Marshal(map[string]interface{}{"IPAddress": "", "MachineName": machine, "SSHUser": "", "SSHPort": 0,
		"SSHKeyPath": "", "StorePath": storage, "SwarmMaster": false, "SwarmHost": "", "SwarmDiscovery": ""})
	must(err)
	return raw
}

// load starts the driver for a stored machine.
func load(machine string) (*host, *plugin) {
	text, err := os.ReadFile(filepath.Join(folder(machine), "config.json"))
	if err != nil {
		fail(1, "Docker machine %q does not exist. Use \"docker-machine ls\" to list machines.", machine)
	}
	h := &host{}
	must(json.Unmarshal(text, h))
	p := start(h.DriverName)
	p.configure(h.Driver)
	return h, p
}

// learn starts the process that is only asked for its flags, and lives until the command ends.
func learn(driver string) (*plugin, []flag) {
	p := start(driver)
	p.configure(base("temp-driver-loader"))
	p.ask("GetMachineName")
	p.ask("DriverName")
	return p, p.flags()
}

func create(arguments []string) {
	driver := "virtualbox"
	for at, argument := range arguments[:max(len(arguments)-1, 0)] {
		if argument == "--driver" || argument == "-d" {
			driver = arguments[at+1]
		}
	}
	loader, flags := learn(driver)
	values, machine, script := options(arguments, flags)
	if _, err := os.Stat(folder(machine)); err == nil {
		fail(1, "Docker machine %q already exists", machine)
	}
	p := start(driver)
	p.configure(base(machine))
	p.ask("GetMachineName")
	h := &host{ConfigVersion: 3, DriverName: p.ask("DriverName"), Name: machine,
		HostOptions: map[string]interface{}{"Driver": "", "Memory": 0, "Disk": 0}}
	for range 2 {
		p.flags()
	}
	flags = p.flags()
	if script != "" {
		withScript(values, flags, machine, script)
	}
	var given driverOptions = &RPCFlags{Values: values}
	if err := p.call("SetConfigFromFlags", &given, nil); err != nil {
		fail(1, "Error setting machine configuration from flags provided: %v", err)
	}
	fmt.Fprintln(os.Stderr, "Running pre-create checks...")
	if err := p.call("PreCreateCheck", nil, nil); err != nil {
		fail(3, "Error with pre-create check: %q", err)
	}
	h.Driver = p.configuration()
	h.save()
	fmt.Fprintln(os.Stderr, "Creating machine...")
	if err := p.call("Create", nil, nil); err != nil {
		p.text("DriverName") // whether the driver is still there or not; the real one waits 2 s more
		fail(1, "Error creating machine: Error in driver during machine creation: %v", err)
	}
	h.Driver = p.configuration()
	h.save()
	for range 3 {
		p.ask("DriverName")
	}
	reach(p, running)
	p.flags()
	h.Driver = p.configuration()
	h.save()
	p.close()
	loader.close()
}

// reach asks for the state until it is the wanted one: 60 times, every 3 s.
func reach(p *plugin, wanted state) {
	for range 60 {
		if now, err := p.state(); err == nil && now == wanted {
			return
		}
		time.Sleep(3 * time.Second)
	}
	fail(1, "Maximum number of retries (60) exceeded")
}

// login is what `ssh` asks for.
func login(p *plugin) string {
	address, err := p.text("GetSSHHostname")
	must(err)
	if net.ParseIP(address) == nil {
		fail(1, "%q is no IP address", address)
	}
	var port int
	must(p.call("GetSSHPort", nil, &port))
	p.ask("GetSSHKeyPath")
	key := p.ask("GetSSHKeyPath")
	file, err := os.Stat(key)
	must(err)
	if file.Mode().Perm()&0o077 != 0 {
		fail(1, "permissions %v for %s are too open", file.Mode().Perm(), key)
	}
	return fmt.Sprintf("ssh -p %d -i %s %s@%s", port, key, p.ask("GetSSHUsername"), address)
}

// change plays start, stop and kill.
func change(machine, action string, wanted state) {
	h, p := load(machine)
	if now, err := p.state(); err != nil {
		fail(1, "%v", err)
	} else if now == wanted {
		fail(1, "Host %q is already %s", machine, strings.ToLower(wanted.String()))
	}
	must(p.call(action, nil, nil))
	reach(p, wanted)
	if wanted == running {
		login(p)
	}
	h.Driver = p.configuration()
	h.save()
	p.close()
}

func restart(machine string) {
	h, p := load(machine)
	for range 2 {
		_, err := p.state()
		must(err)
	}
	must(p.call("Restart", nil, nil))
	reach(p, running)
	login(p)
	h.Driver = p.configuration()
	h.save()
	p.close()
}

func remove(machine string, updateConfig bool) {
	h, p := load(machine)
	others := []*plugin{p}
	if updateConfig {
		loader, _ := learn(h.DriverName)
		_, p = load(machine)
		others = append(others, loader, p)
	}
	if err := p.call("Remove", nil, nil); err != nil && !strings.Contains(strings.ToLower(err.Error()), "not found") {
		fail(1, "Error removing host %q: %v", machine, err)
	}
	must(os.RemoveAll(folder(machine)))
	fmt.Println("Successfully removed", machine)
	for _, p := range others {
		p.close()
	}
}

func list(quiet bool) {
	entries, _ := os.ReadDir(filepath.Join(storage, "machines"))
	for _, entry := range entries {
		_, p := load(entry.Name())
		if quiet {
			fmt.Println(entry.Name())
			p.close()
			continue
		}
		url, problem := p.text("GetURL")
		now := running
		if problem != nil {
			now, _ = p.state()
			if problem.Error() == "Host is not running" {
				problem = nil
			}
		}
		fmt.Println(entry.Name(), p.ask("DriverName"), now, url, problem)
		p.close()
	}
}

// show plays the commands that print one thing and save what the driver knows.
func show(machine string, what func(*plugin) string) {
	h, p := load(machine)
	fmt.Println(what(p))
	h.Driver = p.configuration()
	h.save()
	p.close()
}

func status(p *plugin) string {
	now, err := p.state()
	if err != nil && strings.Contains(strings.ToLower(err.Error()), "not found") {
		fmt.Println("Not Found")
		os.Exit(4)
	}
	must(err)
	return now.String()
}

func zipped(content []byte) string {
	var packed bytes.Buffer
	writer := gzip.NewWriter(&packed)
	_, err := writer.Write(content)
	must(err)
	must(writer.Close())
	return base64.StdEncoding.EncodeToString(packed.Bytes())
}

func main() {
	registerTypes()
	arguments := os.Args[1:]
	if len(arguments) > 1 && arguments[0] == "--storage-path" {
		path, err := filepath.Abs(arguments[1])
		must(err)
		storage, arguments = path, arguments[2:]
	}
	if len(arguments) == 0 {
		fail(2, "which command?")
	}
	command, arguments := arguments[0], arguments[1:]
	if command == "create" {
		create(arguments)
		return
	}
	switches := map[string]bool{}
	machine := ""
	for _, argument := range arguments {
		if strings.HasPrefix(argument, "-") {
			switches[argument] = true
		} else if machine == "" {
			machine = argument
		}
	}
	switch command {
	case "ls":
		list(switches["-q"])
	case "ip":
		show(machine, func(p *plugin) string {
			address, err := p.text("GetIP")
			if err != nil {
				address, err = p.text("GetIPv6")
			}
			must(err)
			return address
		})
	case "url":
		_, p := load(machine)
		url, err := p.text("GetURL")
		must(err)
		fmt.Println(url)
		p.close()
	case "inspect":
		h, p := load(machine)
		h.Driver = p.configuration()
		text, err := json.MarshalIndent(h, "", "    ")
		must(err)
		fmt.Println(string(text))
		p.close()
	case "status":
		show(machine, status)
	case "ssh":
		_, p := load(machine)
		if now, err := p.state(); err != nil || now != running {
			fail(1, "Error: Cannot run SSH command: Host %q is not running", machine)
		}
		fmt.Println(login(p))
		p.close()
	case "start":
		change(machine, "Start", running)
	case "stop":
		change(machine, "Stop", stopped)
	case "kill":
		change(machine, "Kill", stopped)
	case "restart":
		restart(machine)
	case "rm":
		remove(machine, switches["--update-config"])
	case "probe":
		probe(machine)
	default:
		fail(2, "no such command: %s", command)
	}
}
