;;;; A server loop without a socket: its loop is in memory, its peers use the forms of
;;;; tests/support/world, and a test lets time pass.

(in-package #:clgrpc.tests.server)

(defun make-memory-server-loop (world handlers options)
  "A server loop, on the loop of WORLD, of a server with HANDLERS, as MAKE-PROBE takes them, and
OPTIONS."
  (let* ((options (apply #'make-server-options options))
         (services (list (apply #'make-probe handlers)))
         (server (make-instance 'server:wire-server
                                :services services :options options :execution :inline
                                :loop-count 1 :interceptors '() :credentials nil :encoding nil
                                :reserve (loop:make-reserve :threads 1 :queue 1
                                                            :idle-seconds 1)))
         (server-loop (server::make-server-loop :server server :loop (memory:world-loop world)
                                                :options options
                                                :routes (serving:make-routes
                                                         server services
                                                         (server::route-maker :inline))
                                                :max-open (options-max-calls options)
                                                :account (server::server-account server))))
    (setf (server:server-loops server) (list server-loop)
          (server::server-state server) :serving)
    server-loop))

(defun call-with-server-loop (function handlers options events)
  (call-with-log
   events
   (lambda ()
     (let* ((memory:*world* (memory:start-world (memory:make-world)))
            (server-loop (make-memory-server-loop memory:*world* handlers options)))
       (unwind-protect (funcall function server-loop)
         (loop:close-reserve (server::server-reserve (server::server-loop-server server-loop))
                             5))))))

(defmacro with-server-loop ((server-loop &key options events) (&rest handlers) &body body)
  "Evaluate BODY with SERVER-LOOP bound to one in memory, of a server with HANDLERS, a plist of
forms, and OPTIONS, a form. The test fails if an error other than EVENTS is logged."
  `(call-with-server-loop (lambda (,server-loop) ,@body) (list ,@handlers) ,options ',events))

(defun comes (server-loop &key (peer "memory"))
  "A new peer of SERVER-LOOP, called PEER, connects and shakes hands."
  (prog1 (memory:connects (lambda (transport) (server::accept-link server-loop transport))
                          :peer peer)
    (memory:say memory:*world* memory:*end* dialogue:*preface*)
    (memory:hears '(:settings) '(:settings-ack))
    (memory:said)))

(defun link-of (end server-loop)
  "The link of SERVER-LOOP whose peer's end is END."
  (find end (server:server-loop-links server-loop)
        :key (lambda (link) (loop:byte-channel-state
                             (loop:connection-byte-channel (wire::link-socket link))))))

(defun asks (id method &rest arguments)
  "The peer calls METHOD of the probe on stream ID, with a note of ARGUMENTS."
  (memory:hears `(:headers ,id ((":method" "POST") (":scheme" "http")
                                (":path" ,(format nil "/lab.Bench/~A" method))
                                ("content-type" "application/grpc") ("te" "trailers")))
                `(:data ,id ,(coerce (apply #'note-octets arguments) 'octets) :end-stream)))

(defun statuses ()
  "The statuses since the last call: a list of stream and status."
  (loop for (kind id fields) in (memory:said)
        for code = (and (eq kind :headers) (second (assoc "grpc-status" fields :test #'string=)))
        when code collect (list id (status:code-status (parse-integer code)))))

(defun answered (&rest statuses)
  "Check that exactly these streams and STATUSES were answered since the last call."
  (is (equal statuses (statuses))))

(defun keep-open (note call)
  "A handler that answers later, or never."
  (declare (ignore note))
  call)
