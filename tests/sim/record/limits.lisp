;;;; What a server refuses and ends at its limits: connections of peers, streams, octets.

(in-package #:clgrpc.tests.record)

(defun open-peers (peers)
  "The names and numbers of those of PEERS, lists of a name, a number and a peer, that the server
has not left."
  (loop for (name number peer) in peers
        unless (sim:left-p peer) collect (format nil "~A~D" name number)))

(test crowds
  "Which connections a server with room for twenty keeps, when hosts connect in turns of chance."
  (support:check-record
   'crowds
   (with-output-to-string (*standard-output*)
     (sim:with-simulation (simulation :latency '(1/1000 1/1000))
       (sim:add-host "server" (lambda ()
                                (serve-notes '() :max-connections 20 :max-handshakes 12
                                                 :settings-timeout-seconds 5)))
       (let ((hosts (loop for name in '("a" "b" "c") collect (sim:add-host name)))
             (peers '()))
         (dotimes (number 90)
           (let ((host (sim:pick (sim::simulation-chance simulation)
                                 (if (< number 40) (list* (first hosts) hosts) hosts))))
             (sim:on-host (host)
               (let ((peer (sim:connect-peer "server" 50051)))
                 (sim:wait-for 1/100)
                 (when (sim:chance-p (sim::simulation-chance simulation) 3)
                   (sim:say peer (dialogue:frames-octets (dialogue:make-peer) '((:settings))))
                   (sim:say peer dialogue:*preface*))
                 (push (list (sim:host-name host) number peer) peers)))
             (sim:wait-for 1/50)
             (format t "~D: ~{~A~^ ~}~%" number (open-peers peers))))
         (sim:wait-for 6)
         (format t "~{~A~^ ~}~%" (open-peers peers))
         (dolist (entry peers) (sim:hang-up (third entry))))))))

(define-record limits (server client)
    "Streams beyond those that a server takes; messages, metadata and answers that are too large."
  (sim:add-host "server" (lambda ()
                           (serve-notes server :max-concurrent-streams 2 :max-receive-octets 1000
                                               :max-header-list-octets 1024
                                               :max-running-handlers 2)))
  (sim:on-host ((sim:add-host "client"))
    (grpc:with-channel (channel "server:50051" :observer client :max-receive-octets 500)
      (asks channel 1)
      (let ((calls (loop repeat 4 collect (grpc:call-async #'lab.bench:ask channel (note 408)
                                                           :timeout 1))))
        (sim:wait-for 1/2)
        (grpc:cancel (first calls))
        (dolist (call calls) (ending (grpc:await call))))
      (dolist (size '(490 500 900 1000 2000))
        (ending (number-of (lab.bench:ask channel (note 1 :body size)))))
      (dolist (size '(400 600 1000 1200))
        (let ((value (make-string size :initial-element #\v)))
          (ending (number-of (lab.bench:ask channel (note 1) :metadata `(("x" . ,value))))))))))
