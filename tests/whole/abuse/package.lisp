;;;; Abuse: peers that mean ill, over real sockets. attacker.lisp has the raw peers; the other files
;;;; are about what they do to a server and to a client. What is wanted is always the same: the
;;;; right error for who did it, service as usual for everybody else, nothing in the log, nothing
;;;; left over. watch.lisp checks that while attacks run.

(defpackage #:clgrpc.tests.abuse
  (:use #:cl #:clgrpc.base #:clgrpc.option #:clgrpc.tests.form)
  (:local-nicknames (#:encoding #:clgrpc.encoding)
                    (#:grpc #:clgrpc) (#:rpc #:clgrpc.rpc) (#:status #:clgrpc.status)
                    (#:wire #:clgrpc.wire)
                    (#:server #:clgrpc.server)
                    (#:loop #:clgrpc.loop) (#:os #:clgrpc.os)
                    (#:dialogue #:clgrpc.tests.dialogue) (#:support #:clgrpc.tests.support))
  (:import-from #:clgrpc.tests.support
                #:set-descriptor-limit #:make-socket #:close-socket #:call-with-served-sockets)
  (:import-from #:clgrpc.tests.dialogue #:frames-octets)
  (:import-from #:clgrpc.tests.hpack #:with-random #:random-octets)
  (:import-from #:clgrpc.tests.server
                #:+patience+ #:make-signal #:signal-it #:await-signal #:wait-until #:eventually
                #:server-links
                #:held-octets #:note #:note-octets #:number-of #:numbers #:with-log #:events-of
                #:elapsed-seconds #:caught #:framed #:handling #:start-probe #:with-probe
                #:with-started #:ask #:watch #:collect #:chat #:echo #:echo-reactively
                #:add-up-reactively #:budgets)
  (:export
   ;; attacker.lisp
   #:with-evil-server #:opening-octets
   ;; client.lisp
   #:response-fields #:frames #:ok-and-then #:answered-by-fields #:flood-of))

(in-package #:clgrpc.tests.abuse)

(def-suite :clgrpc.abuse :description "Peers that mean ill.")
(def-suite :clgrpc.abuse.heap :description "Peers that make a server keep as much as they can.")
