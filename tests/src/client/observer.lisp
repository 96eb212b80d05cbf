;;;; The events that observers of a channel and of a server get (src/rpc/observer.lisp), by any
;;;; transport.

(in-package #:clgrpc.tests.client)

(defun recorder ()
  "Two values: an observer that records its events, and the list whose car has them, newest first."
  (let ((told (list '())))
    (flet ((note (what) (lambda (&rest arguments)
                          (sb-ext:atomic-push (cons what arguments) (car told)))))
      (values (apply #'grpc:make-observer
                     (loop for what in '(:call-begun :call-ended :attempt-begun :attempt-ended
                                         :headers-sent :headers-received :message-sent
                                         :message-received :connection-begun :connection-ended
                                         :refused)
                           append (list what (note what))))
              told))))

(defun told-names (told)
  (mapcar #'first (reverse (car told))))

(defun told-of (told what)
  "The arguments of the events WHAT, oldest first."
  (mapcar #'rest (remove what (reverse (car told)) :key #'first :test-not #'eq)))

(defmacro with-observed ((channel client server &rest options) handlers &body body)
  "Evaluate BODY with CHANNEL bound to a channel to a probe with HANDLERS, both observed, and CLIENT
and SERVER to the recorded events."
  (let ((one (gensym "CLIENT")) (other (gensym "SERVER")) (probe (gensym "PROBE")))
    `(multiple-value-bind (,one ,client) (recorder)
       (multiple-value-bind (,other ,server) (recorder)
         (let ((,probe (start-probe (list ,@handlers) :observer ,other ,@options)))
           (unwind-protect
                (grpc:with-channel (,channel (grpc:server-address ,probe) :observer ,one)
                  ,@body)
             (grpc:stop-server ,probe :drain 0)))))))

(test observers-of-a-unary-call
  (with-observed (channel client server) (:ask #'double)
    (is (= 8 (number-of (ask channel (note 4)))))
    (eventually (told-of client :attempt-ended))
    (eventually (told-of server :call-ended))
    ;; the call may begin before its connection
    (is (= 1 (length (told-of client :connection-begun))))
    (is (equal '(:call-begun :attempt-begun :headers-sent :message-sent :headers-received
                 :message-received :call-ended :attempt-ended)
               (remove :connection-begun (told-names client))))
    (is (equal '(:connection-begun :call-begun :headers-received :message-received :headers-sent
                 :message-sent :call-ended)
               (told-names server)))
    (let ((octets (grpc:serialized-size (note 4))))
      (is (= octets (second (first (told-of client :message-sent)))))
      (is (= octets (second (first (told-of server :message-received))))))
    (destructuring-bind (call peer status stream sent received ns)
        (first (told-of client :attempt-ended))
      (is (eq :ok status))
      (is (= 1 stream))
      (is (= sent (grpc:serialized-size (note 4))))
      (is (= received (grpc:serialized-size (note 8))))
      (is (< 0 ns 60000000000))
      (is (string= peer (grpc:call-peer call)))
      (is (eq call (first (first (told-of client :call-ended))))))
    (is (eq :ok (grpc:call-status (first (first (told-of server :call-ended))))))))

(test observers-of-streams
  "They get each message, long or short, compressed or not, with its size on the wire."
  (with-observed (channel client server) (:chat #'echo)
    (let ((call (chat channel (list (note 1) (note 2 :body 100000)) :compression :gzip)))
      (is (equal '(1 2) (numbers call))))
    (eventually (told-of server :call-ended))
    (flet ((octets (told what) (mapcar #'second (told-of told what))))
      (is (= 2 (length (octets client :message-sent))))
      (is (equal (octets client :message-sent) (octets server :message-received)))
      (is (equal (octets server :message-sent) (octets client :message-received))))))

(test observers-of-attempts
  "A repeated call has two attempts; the end of the first is not the call's end."
  (multiple-value-bind (observer told) (recorder)
    (let ((counter (list 0)))
      (with-raw-server (address :at :end) (refusing 1 counter)
        (grpc:with-channel (channel address :observer observer)
          (is (= 7 (number-of (ask channel (note 1)))))
          (eventually (= 2 (length (told-of told :attempt-ended))))
          (is (equal '(:unavailable :ok) (mapcar #'third (told-of told :attempt-ended))))
          (is (equal '(1 3) (mapcar #'third (told-of told :attempt-begun))))
          (is (= 1 (length (told-of told :call-begun))))
          (is (= 1 (length (told-of told :call-ended)))))))))

(test observers-of-attempts-that-have-no-stream
  "A call whose servers cannot be reached has one attempt, which ends as the call does (gRFC A66)."
  (multiple-value-bind (observer told) (recorder)
    (let ((address (free-address)))
      (grpc:with-channel (channel address :observer observer)
        (is (typep (caught (ask channel (note 1))) 'grpc:unavailable))
        (is (equal '((nil nil)) (mapcar #'rest (told-of told :attempt-begun))))
        (is (equal '((nil :unavailable nil 0 0))
                   (mapcar (lambda (told) (subseq told 1 6)) (told-of told :attempt-ended))))
        (is (= 1 (length (told-of told :call-ended))))))))

(test several-observers-are-told-alike
  (multiple-value-bind (one told) (recorder)
    (multiple-value-bind (other others) (recorder)
      (with-probe (channel :channel-options (list :observer (list one nil other))) (:ask #'double)
        (is (= 4 (number-of (ask channel (note 2)))))
        (eventually (told-of others :attempt-ended))
        (is (equal (told-names told) (told-names others)))))))

(test observers-of-connections-and-refusals
  (with-observed (channel client server :max-calls 1 :execution :blocking)
      (:ask (let ((first t))
              (lambda (note call)
                (when (shiftf first nil)
                  (loop repeat 3000 until (told-of server :refused) do (sleep 0.01)))
                (double note call))))
    (let ((future (grpc:call-async #'lab.bench:ask channel (note 1))))
      (eventually (told-of server :call-begun))
      (is (typep (caught (ask channel (note 2))) 'grpc:resource-exhausted))
      (is (= 2 (number-of (grpc:await future))))
      (is (eq :max-calls (first (first (told-of server :refused)))))
      (is (= 2 (length (told-of server :call-ended)))))
    (grpc:close-channel channel)
    (eventually (told-of server :connection-ended))
    (is (= 1 (length (told-of client :connection-ended))))
    (is (stringp (second (first (told-of client :connection-ended)))))))

(test an-observer-that-fails-harms-no-call
  (let ((observer (grpc:make-observer :call-begun (lambda (call) (error "of ~A" call)))))
    (with-probe (channel :channel-options (list :observer observer) :events (:observer-error))
        (:ask #'double)
      (is (= 4 (number-of (ask channel (note 2)))))
      (is-true (events-of :observer-error)))))

(test observers-of-calls-within-the-image
  "Observers at both ends see unary calls and streams."
  (multiple-value-bind (one client) (recorder)
    (multiple-value-bind (other server) (recorder)
      (with-started (probe (start-probe (list :ask #'double :chat #'echo) :observer other) :drain 0)
        (let ((channel (grpc:server-channel probe :observer one)))
          (is (= 8 (number-of (ask channel (note 4)))))
          (is (equal '(:call-begun :attempt-begun :message-sent :message-received
                       :call-ended :attempt-ended)
                     (told-names client)))
          (destructuring-bind (call peer status stream sent received ns)
              (first (told-of client :attempt-ended))
            (declare (ignore call))
            (is (equal '("inproc:" :ok 0) (list peer status stream)))
            (is (= sent (grpc:serialized-size (note 4))))
            (is (= received (grpc:serialized-size (note 8))))
            (is (plusp ns)))
          (is (equal '(:call-begun :message-received :message-sent :call-ended)
                     (told-names server)))
          (is (equal '(1 2) (numbers (chat channel (list (note 1) (note 2))))))
          (is (= 3 (length (told-of client :message-received))))
          (is (= 3 (length (told-of server :message-received))))
          (is (= 2 (length (told-of client :call-ended))))
          (is (= 2 (length (told-of server :call-ended))))
          (grpc:close-channel channel))))))
