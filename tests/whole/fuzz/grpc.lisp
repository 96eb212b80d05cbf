;;;; gRPC above HTTP/2: a server and a channel as they are, in a simulation, and at the other end a
;;;; peer that says the input. Whatever it says, nothing is logged as an error but a handler's own,
;;;; every call ends, and nothing of a connection is left when it is over.

(in-package #:clgrpc.tests.fuzz)

(defun make-fuzzed-simulation (prepare)
  "A simulation in which PREPARE has been called."
  (let ((simulation (sim:make-simulation :latency '(0 0) :limit 1000000000
                                         :steps (ash 1 47))))
    (sim:call-in-simulation simulation prepare)
    simulation))

(defun call-in-fuzzed-simulation (simulation function)
  "Call FUNCTION with SIMULATION, of MAKE-FUZZED-SIMULATION, whose history begins anew. The threads
that it has needed end: what is long and compressed is decompressed on one."
  (sim:call-in-simulation simulation
                          (lambda (simulation)
                            (sim:forget-history simulation)
                            (unwind-protect (funcall function simulation)
                              (sim::end-threads simulation)))))

(defun errors-logged (simulation)
  (loop for entry across (sim::history-entries (sim::simulation-history simulation))
        when (and (eq :error (first (sim::entry-arguments entry)))
                  (not (eq :handler-error (sim::entry-event entry))))
          collect (sim::entry-line entry)))

(defun say (peer octets)
  "Have PEER say OCTETS, and what it causes happen."
  (sim:say peer octets)
  (sim:settle :timeout 1/100)
  (sim:hear peer))

(defun say-in-pieces (peer octets)
  (loop with start = 0
        while (and (< start (length octets)) (not (sim:left-p peer)))
        do (let ((end (min (length octets) (+ start 1 (below 1000)))))
             (say peer (subseq octets start end))
             (setf start end))))

(defun hang-up (peer simulation)
  "End PEER's side, and see that nothing is left of the connection."
  (sim:hang-up peer)
  (sim:settle :timeout 1/100)
  (unless (sim:forgotten-p peer) (found "the connection is not closed"))
  (let ((errors (errors-logged simulation)))
    (when errors (found "logged: ~S" errors))))

;;; The server

(defun fuzzed-note (text)
  (lab:make-note :text text))

(defun answer-ask (request call)
  (declare (ignore call))
  (case (mod (lab:note-number request) 8)
    (0 (grpc:fail :not-found (lab:note-text request)
                  :details (list (lab:make-note :text "detail"))
                  :trailers '(("reason" . "none"))))
    (1 (error "As asked."))
    (2 nil)
    (3 "no message")
    (t request)))

(defun answer-later (request call)
  "A handler of streams that holds no thread."
  (declare (ignore request))
  (let ((count 0))
    (grpc:on-message call (lambda (message)
                            (incf count)
                            (when (grpc:call-status call) (found "a message after the end"))
                            (grpc:try-send call message)))
    (grpc:on-half-close call (lambda ()
                               (grpc:finish call :message (format nil "~D" count))))
    call))

(defun answer-watch (request call)
  (loop repeat (mod (lab:note-number request) 5)
        do (grpc:try-send call request))
  nil)

(defun answer-collect (request call)
  (declare (ignore request))
  (let ((last (fuzzed-note "")))
    (grpc:on-message call (lambda (message) (setf last message)))
    (grpc:on-half-close call (lambda () (grpc:reply call last)))
    call))

(defvar *server-simulation* nil)

(defun start-fuzzed-server (simulation)
  (declare (ignore simulation))
  (sim:add-host "server"
                (lambda ()
                  (clgrpc.tests.server:start-probe
                   (list :ask #'answer-ask :watch #'answer-watch :collect #'answer-collect
                         :chat #'answer-later)
                   :listen "server:1" :execution :inline))))

(defun server-simulation ()
  "The simulation with the server; it is made when needed."
  (or *server-simulation*
      (setf *server-simulation* (make-fuzzed-simulation #'start-fuzzed-server))))

(defun check-fuzzed-server (server)
  (dolist (server-loop (server:server-loops server))
    (unless (zerop (server::server-loop-open server-loop))
      (found "~D calls are open" (server::server-loop-open server-loop)))
    (unless (zerop (server::server-loop-link-count server-loop)) (found "a link is left"))
    (unless (zerop (loop:event-loop-connections (server:server-loop-loop server-loop)))
      (found "a connection counts")))
  (unless (zerop (account-sum (server::server-account server)))
    (found "~D octets are charged" (account-sum (server::server-account server))))
  (unless (zerop (server::ranking-total
                  (server::admission-handshakes (server::server-admission server))))
    (found "a link counts as unready")))

(defun run-grpc-server (kind octets)
  (declare (ignore kind))
  (call-in-fuzzed-simulation
   (server-simulation)
   (lambda (simulation)
     (let ((peer (sim:connect-peer "server" 1)))
       (say-in-pieces peer octets)
       (let ((closed (sim:left-p peer)))
         (hang-up peer simulation)
         (check-fuzzed-server (first (sim:host-processes
                                      (second (sim::simulation-hosts simulation)))))
         (when closed (error 'connection-ended)))))))

(defun framed (octets &optional (flag 0))
  (clgrpc.tests.server:framed octets :flag flag))

(defun note-frames (&rest numbers)
  "Length-prefixed messages with NUMBERS, as octets."
  (join-octets (loop for number in numbers
                     collect (coerce (clgrpc.tests.server:note-octets
                                      number :text (make-string (* 3 number) :initial-element #\x))
                                     'octets))))

(defun request-fields (method &rest more)
  `((":method" "POST") (":scheme" "http") (":path" ,(format nil "/lab.Bench/~A" method))
    (":authority" "localhost") ("te" "trailers") ("content-type" "application/grpc")
    ("grpc-accept-encoding" "gzip,deflate,identity") ("user-agent" "fuzz/1")
    ,@(loop for (name value) on more by #'cddr collect (list name value))))

(defun grpc-requests ()
  (mapcar
   (lambda (forms) (session-sample :server (list* '(:settings) '(:settings-ack) forms)))
   `(((:headers 1 ,(request-fields "Ask" "grpc-timeout" "5S"))
      (:data 1 ,(note-frames 4) :end-stream)
      (:headers 3 ,(request-fields "Ask" "x-trace-bin" "AAECAw")) (:data 3 ,(note-frames 0))
      (:data 3 0 :end-stream)
      (:headers 5 ,(request-fields "Ask" "grpc-encoding" "gzip"))
      (:data 5 ,(framed (octets-of 31 139 8 0 1 2 3) 1) :end-stream))
     ((:headers 1 ,(request-fields "Watch" "grpc-timeout" "100000n"))
      (:data 1 ,(note-frames 9) :end-stream)
      (:headers 3 ,(request-fields "Collect")) (:data 3 ,(note-frames 1 2 3))
      (:headers 5 ,(request-fields "Chat" "x" "1")) (:data 5 ,(note-frames 1 20 3 4))
      (:data 3 ,(note-frames 5) :end-stream) (:rst-stream 5 :cancel) (:ping 7))
     ((:headers 1 ,(request-fields "Chat")) (:data 1 ,(subseq (note-frames 1 2) 0 9))
      (:data 1 ,(subseq (note-frames 1 2) 9)) (:data 1 ,(note-frames 3) :end-stream)
      (:headers 3 ,(request-fields "None")) (:data 3 ,(note-frames 1) :end-stream)
      (:headers 5 :get :end-stream) (:headers 7 ,(request-fields "Ask" "grpc-encoding" "br"))
      (:data 7 ,(note-frames 1) :end-stream))
     ((:headers 1 ,(request-fields "Ask")) (:data 1 ,(note-frames 5) (:pad 9))
      (:headers 1 (("x-end" "1")) :end-stream)
      (:headers 3 ,(request-fields "Ask" "authorization" "Bearer x" "grpc-timeout" "1H"))
      (:headers 5 ,(request-fields "Collect" "grpc-tags-bin" "AAA=,AQ"))
      (:data 3 ,(note-frames 1 2) :end-stream) (:data 5 ,(framed (octets-of 8)) :end-stream)))))

(define-target "grpc-server"
  :samples #'grpc-requests :mutate #'mutate-session :run #'run-grpc-server
  :conditions (connection-ended) :seconds 1/20)

;;; The client

(defvar *client-simulation* nil)
(defvar *listener* nil "Where the client's connections come to.")

(defun client-simulation ()
  "The simulation with the client; it is made when needed."
  (or *client-simulation*
      (setf *client-simulation*
            (make-fuzzed-simulation (fn (_simulation) (setf *listener* (sim:listen-as-peer 1)))))))

(defun begin-calls (channel)
  "A call of each kind on CHANNEL."
  (let ((streams (list (lab.bench:watch channel (fuzzed-note "w"))
                       (lab.bench:collect channel :open)
                       (lab.bench:chat channel :open))))
    (dolist (call streams)
      (grpc:on-message call (lambda (message)
                              (unless (typep message 'lab:note) (found "~S is no note" message)))))
    (grpc:try-send (second streams) (fuzzed-note "c"))
    (grpc:try-send (third streams) (fuzzed-note "d"))
    (grpc:close-send (second streams))
    (list* (method:invoke channel (method:stub-method 'lab.bench:ask) (fuzzed-note "a")
                           :async t)
           streams)))

(defun run-grpc-client (kind octets)
  (declare (ignore kind))
  (call-in-fuzzed-simulation
   (client-simulation)
   (lambda (simulation)
     (let* ((channel (grpc:make-channel "home:1"))
            (calls (begin-calls channel))
            (peer (progn (sim:settle :timeout 1/100) (sim:accept-peer *listener*))))
       (say-in-pieces peer octets)
       (let ((closed (sim:left-p peer)))
         (grpc:close-channel channel)
         (hang-up peer simulation)
         ;; it may have connected anew
         (loop for other = (sim:accept-peer *listener*)
               while other do (hang-up other simulation))
         (dolist (call calls)
           (unless (grpc:call-status call) (found "~S has not ended" call))
           (grpc:call-metadata call)
           (grpc:call-trailers call)
           (princ-to-string call))
         (when closed (error 'connection-ended)))))))

(defun response-fields (&rest more)
  `((":status" "200") ("content-type" "application/grpc")
    ,@(loop for (name value) on more by #'cddr collect (list name value))))

(defun grpc-answers ()
  (mapcar
   (lambda (forms) (session-sample :client (list* '(:settings) '(:settings-ack) forms)))
   `(((:headers 1 ,(response-fields "x-trace-bin" "AAEC")) (:data 1 ,(note-frames 1 2 3))
      (:headers 3 ,(response-fields)) (:headers 5 ,(response-fields)) (:data 5 ,(note-frames 4))
      (:headers 1 :done :end-stream) (:data 3 ,(note-frames 7)) (:headers 3 :done :end-stream)
      (:headers 7 ,(response-fields)) (:data 7 ,(note-frames 1))
      (:headers 7 (("grpc-status" "0")) :end-stream)
      (:headers 5 (("grpc-status" "5") ("grpc-message" "not%20there%E2%82%AC")
                   ("grpc-status-details-bin" "CAUSAmhp") ("x-end" "1"))
                :end-stream))
     ((:headers 1 ,(response-fields "grpc-encoding" "gzip")) (:data 1 ,(framed (octets-of 1) 1))
      (:headers 3 (,@(response-fields) ("grpc-status" "12")) :end-stream)
      (:headers 5 ((":status" "503") ("content-type" "text/html"))) (:data 5 100 :end-stream)
      (:rst-stream 7 :refused-stream) (:goaway 7 :no-error))
     ((:headers 1 :continue) (:headers 1 ,(response-fields)) (:data 1 ,(note-frames 1))
      (:rst-stream 1 :cancel) (:headers 3 ,(response-fields)) (:data 3 ,(note-frames 1 2))
      (:headers 3 :done :end-stream) (:headers 5 ,(response-fields))
      (:data 5 ,(subseq (note-frames 9) 0 7)) (:headers 5 :done :end-stream)
      (:headers 7 ,(response-fields)) (:headers 7 (("grpc-status" "99")) :end-stream)))))

(define-target "grpc-client"
  :samples #'grpc-answers :mutate #'mutate-session :run #'run-grpc-client
  :conditions (connection-ended) :seconds 1/20)
