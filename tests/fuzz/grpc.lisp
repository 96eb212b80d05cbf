;;;; gRPC above HTTP/2: a server and a channel as they are, on a loop of their own that this thread
;;;; runs turn by turn, over transports that are pieces of memory. Whatever a peer says, nothing is
;;;; logged as an error but a handler's own, every call ends, and nothing of a connection is left
;;;; when it is over.

(in-package #:clgrpc.tests.fuzz)

;;; Transports of memory, and a poller that reports what has been put into them

(defstruct (wire (:copier nil))
  "What the peer has said and the loop has not read: OCTETS from START. HEARD counts what the loop
has written. ENDED: the peer says no more; SHUT: the loop does not; CLOSED: it is done with this."
  (octets (make-octets 0) :type octets)
  (start 0 :type index)
  (heard 0 :type index)
  (ended nil :type boolean)
  (shut nil :type boolean)
  (closed nil :type boolean))

(defstruct (world (:copier nil))
  "A LOOP that this thread runs; the WIRE of its one connection has DESCRIPTOR and TOKEN there, if
the loop watches it. ERRORS are those logged."
  (loop nil)
  (wire nil :type (or null wire))
  (descriptor 3 :type fixnum)
  (token 0)
  (news 0 :type (unsigned-byte 32))
  (errors '() :type list))

(defun read-wire (transport octets start end)
  (let* ((wire (loop:transport-state transport))
         (count (min (- end start) (- (length (wire-octets wire)) (wire-start wire)))))
    (cond ((plusp count)
           (replace octets (wire-octets wire) :start1 start :start2 (wire-start wire)
                                              :end1 (+ start count))
           (incf (wire-start wire) count)
           count)
          ((wire-ended wire) 0)
          (t loop::+wants-read+))))

(defun write-wire (transport octets start end)
  (declare (ignore octets))
  (incf (wire-heard (loop:transport-state transport)) (- end start))
  (- end start))

(defparameter *wire-kind*
  (loop:make-transport-kind
   :name "memory" :read #'read-wire :write #'write-wire
   :shutdown (lambda (transport) (setf (wire-shut (loop:transport-state transport)) t))
   :close (lambda (transport)
            (let ((wire (loop:transport-state transport)))
              (setf (wire-shut wire) t
                    (wire-closed wire) t)))))

(defun world-poller (world)
  (loop:make-poller
   :add (lambda (poller descriptor token)
          (declare (ignore poller descriptor))
          (setf (world-token world) token)
          0)
   :remove (lambda (poller descriptor)
             (declare (ignore poller descriptor))
             (setf (world-token world) 0)
             0)
   :wait (lambda (poller timeout-ns)
           (declare (ignore timeout-ns))
           (cond ((or (zerop (world-news world)) (eql 0 (world-token world))) 0)
                 (t (setf (aref (loop:poller-tokens poller) 0) (world-token world)
                          (aref (loop::poller-flags poller) 0) (shiftf (world-news world) 0))
                    1)))
   :wake #'identity
   :close #'identity))

(defun note-logged (world level event plist)
  (when (and (eq level :error) (not (eq event :handler-error)))
    (push (list* event plist) (world-errors world))))

(defun make-world-loop (world)
  (setf (world-loop world) (loop:make-event-loop :name "fuzzing" :poller (world-poller world))))

(defun run-turns (world &optional (most 200))
  "Run the loop of WORLD until it has nothing to do; MOST turns at most."
  (let ((loop (world-loop world)))
    (loop::with-taken-loop (loop (loop::take loop))
      (unwind-protect
           (loop repeat most
                 do (loop::run-turn loop)
                 while (or (plusp (world-news world))
                           (plusp (loop::event-loop-ready-count loop))
                           (plusp (loop::event-loop-dirty-count loop))
                           (plusp (loop::event-loop-ring-count loop))
                           (not (loop::inbox-empty-p (loop::event-loop-inbox loop))))
                 finally (return nil))
        (loop::hand-over loop)))))

(defun say (world octets)
  "Have the peer say OCTETS."
  (let ((wire (world-wire world)))
    (setf (wire-octets wire) octets
          (wire-start wire) 0
          (world-news world) (logior loop::+readable+ loop::+writable+))
    (run-turns world)))

(defun hang-up (world)
  "End the peer's side, and see that nothing is left of the connection."
  (setf (wire-ended (world-wire world)) t
        (world-news world) (logior loop::+readable+ loop::+writable+ loop::+ended+))
  (run-turns world)
  (unless (wire-closed (world-wire world)) (found "the connection is not closed"))
  (unless (zerop (loop:event-loop-connections (world-loop world)))
    (found "the loop counts ~D connections" (loop:event-loop-connections (world-loop world))))
  (when (world-errors world) (found "logged: ~S" (shiftf (world-errors world) '()))))

(defun new-transport (world)
  (setf (world-errors world) '()
        (world-news world) 0)
  (setf (world-wire world) (make-wire))
  (loop:make-transport *wire-kind* (world-descriptor world) "memory" (world-wire world)))

(defun call-with-world-log (world function)
  (let ((*log-function* (lambda (level event &rest plist) (note-logged world level event plist))))
    (funcall function)))

(defun say-in-pieces (world octets)
  (loop with start = 0
        while (and (< start (length octets)) (not (wire-closed (world-wire world))))
        do (let ((end (min (length octets) (+ start 1 (below 1000)))))
             (say world (subseq octets start end))
             (setf start end))))

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

(defvar *server-world* nil)
(defvar *hub* nil)

(defun fuzzed-hub ()
  "The hub of a server on the loop of *SERVER-WORLD*; both are made when needed."
  (or *hub*
      (let* ((world (make-world))
             (services (list (clgrpc.tests.server:make-probe
                              :ask #'answer-ask :watch #'answer-watch :collect #'answer-collect
                              :chat #'answer-later)))
             (options (make-server-options))
             (server (make-instance 'server:wire-server
                                    :services services :options options :execution :inline
                                    :loop-count 1 :interceptors '() :credentials nil :encoding nil
                                    :reserve (loop:make-reserve :threads 1 :queue 1
                                                                :idle-seconds 1))))
        (setf *server-world* world
              *hub* (server::make-hub
                     :server server :loop (make-world-loop world) :options options
                     :routes (rpc:make-routes server services :inline
                                              #'server::make-server-route)
                     :max-open 1000 :ledger (server::server-ledger server))))))

(defun run-grpc-server (kind octets)
  (declare (ignore kind))
  (let* ((hub (fuzzed-hub))
         (world *server-world*))
    (call-with-world-log
     world
     (lambda ()
       (let ((transport (new-transport world)))
         (loop:post (world-loop world) (lambda () (server::accept-link hub transport)))
         (run-turns world)
         (say-in-pieces world octets)
         (let ((closed (wire-shut (world-wire world))))
           (hang-up world)
           (unless (zerop (server::hub-open hub))
             (found "~D calls are open" (server::hub-open hub)))
           (unless (zerop (server::hub-link-count hub)) (found "a link is left"))
           (unless (zerop (ranking-total (server::census-handshakes
                                       (server::server-census (server::hub-server hub)))))
             (found "a link counts as unready"))
           (unless (zerop (http2:pool-queued-octets (server::hub-pool hub)))
             (found "octets count as queued"))
           (when closed (error 'connection-ended))))))))

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

(defvar *client-world* nil)

(defun client-world ()
  (or *client-world*
      (let ((world (make-world)))
        (make-world-loop world)
        (setf *client-world* world))))

(defun fuzzed-channel (world)
  "A channel that cannot connect, but for what BEGIN-CONNECTION gives it."
  (let* ((options (make-channel-options))
         (core (client::make-core :name "memory" :loop (world-loop world) :options options
                                  :sink client::**client-sink**
                                  :resolver (client::make-resolver "unix:/nowhere/at/all" options)
                                  :authority (hpack:string-field ":authority" "localhost"))))
    (setf (client::core-balancer core) (make-instance 'client::pick-first :core core))
    (make-instance 'client:wire-channel :target "memory" :core core)))

(defun begin-connection (core transport)
  "Have CORE, as if it had connected, use TRANSPORT."
  (let* ((balancer (client::core-balancer core))
         (subchannel (client::open-subchannel balancer '())))
    (setf (client::pick-first-subchannel balancer) subchannel)
    (client::change-state subchannel :connecting)
    (client::enter-stage core :resolve)
    (client::begin-link subchannel transport)))

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
    (list* (rpc:invoke channel (rpc:find-rpc-method 'lab.bench:ask) (fuzzed-note "a") :async t)
           streams)))

(defun run-grpc-client (kind octets)
  (declare (ignore kind))
  (let ((world (client-world)))
    (call-with-world-log
     world
     (lambda ()
       (let* ((channel (fuzzed-channel world))
              (core (client::channel-core channel))
              (transport (new-transport world)))
         (loop:post (world-loop world) (lambda () (begin-connection core transport)))
         (run-turns world)
         (let ((calls (begin-calls channel)))
           (run-turns world)
           (say-in-pieces world octets)
           (let ((closed (wire-shut (world-wire world))))
             (loop:post (world-loop world) (lambda () (client::shut-down core)))
             (run-turns world)
             (hang-up world)
             (dolist (call calls)
               (unless (grpc:call-status call) (found "~S has not ended" call))
               (grpc:call-metadata call)
               (grpc:call-trailers call)
               (princ-to-string call))
             (when closed (error 'connection-ended)))))))))

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
