;;;; The simulator: it runs real processes of servers and clients on a virtual network and a virtual
;;;; clock, from a seed. doc/simulation.md explains how to use it.

(defpackage #:clgrpc.sim
  (:use #:cl #:clgrpc.base)
  (:local-nicknames (#:os #:clgrpc.os) (#:loop #:clgrpc.loop) (#:rpc #:clgrpc.rpc)
                    (#:calling #:clgrpc.calling)
                    (#:server #:clgrpc.server))
  (:export
   ;; chance.lisp
   #:chance #:make-chance #:below #:between #:chance-p #:pick
   ;; history.lisp
   #:note #:simulation-entries #:simulation-digest #:write-history
   ;; simulation-structure.lisp
   #:simulation #:*simulation* #:simulation-seed #:simulation-chance #:simulation-now
   #:simulation-steps #:host #:host-name #:host-up #:host-processes #:simulation-error
   #:simulation-hang
   ;; schedule.lisp
   #:now #:wait-until #:wait-for #:at #:start-task #:task-done-p
   ;; fault.lisp
   #:cut #:partition #:heal #:slow #:restart-host #:stop-host
   ;; simulation.lisp
   #:with-simulation #:call-with-simulation #:add-host #:on-host #:current-host #:idle-p
   #:make-simulation #:call-in-simulation #:close-simulation #:settle #:forget-history
   ;; peer.lisp
   #:peer #:connect-peer #:listen-as-peer #:accept-peer #:say #:hear #:left-p #:hang-up
   #:forgotten-p #:serve-datagrams
   ;; seed.lisp
   #:run-seeds #:seed-failed #:seed-failed-seed #:seed-failed-condition))
