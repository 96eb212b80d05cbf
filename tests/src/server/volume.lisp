;;;; Long messages, and many octets that nobody reads: neither must disturb other calls.

(in-package #:clgrpc.tests.server)

(defparameter *large* (* 16 1024 1024) "The size of the long messages of the coarser tests.")

(defun patterned-octets (size seed)
  (let ((octets (make-octets size)))
    (loop with x of-type (unsigned-byte 32) = (+ 12345 seed)
          for i below size
          do (setf x (logand #xFFFFFFFF (+ 1013904223 (* 1664525 x)))
                   (aref octets i) (ash x -24)))
    octets))

(defun same-body-p (note octets)
  (octets-equal octets (lab:note-body note)))

;;; Sizes and styles

(defun echo-one (note call)
  (declare (ignore call))
  note)

(defun echo-one-later (note call)
  (grpc:after call 0.001 (lambda () (grpc:reply call note)))
  call)

(defun send-thrice (note call)
  (dotimes (i 3)
    (grpc:send call note)
    (grpc:send call (note i)))
  nil)

(defun last-of (stream call)
  (declare (ignore call))
  (let ((last nil))
    (grpc:do-messages (note stream last)
      (setf last note))))

(defun last-of-reactively (stream call)
  (let ((last nil))
    (grpc:on-message stream (lambda (note) (setf last note)))
    (grpc:on-half-close stream (lambda () (grpc:reply call last))))
  call)

(defun check-long-messages (channel)
  "Send messages around every size at which they are sent differently, in all four kinds of call."
  (loop for (size . seed) in '((16300 . 1) (16372 . 2) (16379 . 3) (16384 . 4) (32740 . 5)
                               (32768 . 6) (65536 . 7) (100000 . 8) (1048576 . 9) (3000000 . 10))
        do (let* ((body (patterned-octets size seed))
                  (note (note size :body body))
                  (small (note 1)))
             (is-true (same-body-p (ask channel note) body) "ask, ~D octets" size)
             (let ((answers '()))
               (grpc:do-messages (answer (watch channel note)) (push answer answers))
               (is (equal (list size 0 size 1 size 2) (mapcar #'number-of (reverse answers)))
                   "watch keeps the order, ~D octets" size)
               (is-true (same-body-p (sixth answers) body) "watch, ~D octets" size))
             (is-true (same-body-p (collect channel (list small note small note)) body)
                      "collect, ~D octets" size)
             (let ((answers '()))
               (grpc:do-messages (answer (chat channel (list note small note)))
                 (push answer answers))
               (is (equal (list size 1 size) (mapcar #'number-of answers)))
               (is-true (and (same-body-p (first answers) body) (same-body-p (third answers) body))
                        "chat, ~D octets" size)))))

(defparameter *long-options* (list :max-receive-octets (* 20 1024 1024)))

(macrolet ((define-style (name execution ask collect chat)
             `(test ,name
                (with-probe (channel :options (list* :execution ,execution *long-options*)
                                     :channel-options *long-options*)
                    (:ask ,ask :watch #'send-thrice :collect ,collect :chat ,chat)
                  (check-long-messages channel)))))
  (define-style long-messages-inline :inline #'echo-one #'last-of-reactively #'echo-reactively)
  (define-style long-messages-blocking :blocking #'echo-one #'last-of #'echo)
  (define-style long-messages-later :auto #'echo-one-later #'last-of #'echo))

(test vectors-are-used-again
  "No object of users refers to a vector that the transport uses again, and in the steady state a
long message costs only its own octets at each end that decodes it."
  (with-probe (channel :options (list* :execution :inline *long-options*)
                       :channel-options *long-options*)
      (:ask #'echo-one)
    (let* ((body (patterned-octets 1000000 1))
           (note (note 1 :body body))
           (first (ask channel note)))
      (dotimes (i 5) (ask channel (note 2 :body (patterned-octets 1000000 i))))
      (is-true (same-body-p first body))
      (let ((before (sb-ext:get-bytes-consed)))
        (dotimes (i 20) (ask channel note))
        (let ((each (/ (- (sb-ext:get-bytes-consed) before) 20)))
          (is (< each (* 2.5 1000000)) "~,1F octets for each" each)))
      (is (plusp (clgrpc.base::stored-octets))))
    (clgrpc.base::clear-store)))

(test what-is-encoded-ahead-is-used-again
  "A call that nobody waits for is encoded at once, into octets of the store: besides the call
itself, only the copy for the handler becomes garbage."
  (flet ((answer (note call) (declare (ignore call)) (note (length (lab:note-body note)))))
    (with-probe (channel :options '(:execution :inline)) (:ask #'answer)
      (let ((note (note 1 :body 10000)))
        (flet ((ask-ahead (count)
                 (loop repeat count
                       do (grpc:await (grpc:call-async #'lab.bench:ask channel note)))))
          (ask-ahead 200)
          (let ((before (sb-ext:get-bytes-consed)))
            (ask-ahead 200)
            (let ((each (/ (- (sb-ext:get-bytes-consed) before) 200)))
              (is (< each 16000) "~,1F octets for each" each))))))))

;;; Beside long messages

(defun call-beside (channel function)
  "Make small calls on CHANNEL, one after the other, until FUNCTION, on another thread, returns.
Return their latencies in milliseconds, longest first."
  (let* ((done nil)
         (thread (in-thread (unwind-protect (funcall function) (setf done t))))
         (latencies (loop until done
                          collect (* 1000 (elapsed-seconds (ask channel (note 1)))))))
    (sb-thread:join-thread thread :timeout (* 3 +patience+))
    (sort latencies #'>)))

(test small-calls-beside-long-messages
  "While messages of 16 MB flow in both directions, small calls on the same and on another
connection continue: each waits for a part of such a message at most, however slow the machine is."
  (with-probe (channel :server server :options (list* :execution :inline *long-options*)
                       :channel-options *long-options*)
      (:ask #'echo-one)
    (grpc:with-channel (other (grpc:server-address server))
      (let ((long (note 2 :body *large*)))
        (dolist (bystander (list channel other))
          (let* ((long-ms 0)
                 (latencies (call-beside bystander
                                         (lambda ()
                                           (setf long-ms (* 250 (elapsed-seconds
                                                                  (dotimes (i 4)
                                                                    (ask channel long))))))))
                 (count (length latencies))
                 (p99 (elt latencies (floor count 100))))
            (is (< 20 count) "only ~D small calls got through" count)
            (is (< p99 (max 250 (/ long-ms 2))) "p99 is ~,1F ms, a long call takes ~,1F" p99
                long-ms)))))
    (clgrpc.base::clear-store)))

;;; Short messages that come together

(defun bodies-of-all-sizes (random)
  "Bodies of messages, most of them short, some of a size at which messages are sent differently."
  (loop for i below 600
        collect (patterned-octets (case (random 10 random)
                                    (0 (random 600 random))
                                    (1 (+ 16300 (random 200 random)))
                                    (t (random 40 random)))
                                  i)))

(test messages-that-come-together
  "Messages of all sizes, in reads of any size, are read one by one and whole, by a thread that
waits or a callback, at either end; in the end nothing is charged to the connection."
  (let* ((seed (random 1000000000 (make-random-state t)))
         (random (sb-ext:seed-random-state seed)))
    (format t "~&; messages-that-come-together: seed ~D~%" seed)
    (dolist (echo (list #'echo #'echo-reactively))
      (with-probe (channel :server server) (:chat echo)
        (dotimes (i 4)
          (let* ((bodies (bodies-of-all-sizes random))
                 (answers '())
                 (call (chat channel (mapcar (lambda (body) (note 1 :body body)) bodies))))
            (if (evenp i)
                (grpc:do-messages (answer call) (push answer answers))
                (let ((done (make-signal)))
                  (grpc:on-message call (lambda (answer) (push answer answers)))
                  (grpc:on-half-close call (lambda () (signal-it done)))
                  (is-true (await-signal done))))
            (is (= (length bodies) (length answers)))
            (is (every #'same-body-p (reverse answers) bodies))))
        (eventually (zerop (held-octets server)))))))

;;; Calls that nobody reads

(defun endless (note)
  (lambda () note))

(test calls-nobody-reads
  "Twenty calls whose handlers do not read, each with a full window, delay no other call on their
connection, though together they have sent several times its window."
  (let ((gate (make-signal)))
    (with-probe (channel :server server :options '(:stream-window-octets 65535
                                                   :connection-window-octets 131072))
        (:ask #'double
         :chat (handling ()
                 (await-signal gate)
                 nil))
      (let ((calls (loop repeat 20 collect (chat channel (endless (note 1 :body 10000))))))
        (eventually (<= (* 20 60000) (held-octets server)))
        ;; the calls end before handlers give up and so make room; the second needs many windows
        (is (= 42 (number-of (ask channel (note 21) :timeout 5))))
        (is (= 42 (number-of (ask channel (note 21 :body 1000000) :timeout 5))))
        (mapc #'grpc:cancel calls)
        (dolist (call calls) (signal-it gate))
        (eventually (zerop (held-octets server)))))))

(test calls-nobody-reads-are-bounded
  "Beyond half of max-held-octets the connection waits as well; no call ends because of this, and
once their handlers read, all get their messages."
  (let ((gate (make-signal)) (limit 1048576) (rounds 20))
    (with-probe (channel :server server :options (list :stream-window-octets 65535
                                                       :connection-window-octets 131072
                                                       :max-receive-octets 100000
                                                       :max-held-octets limit))
        (:collect (handling (stream)
                    (await-signal gate)
                    (note (length (numbers stream)))))
      (let ((peak 0) (count 20))
        (let ((answers
                (with-threads (i (1+ count))
                  (cond ((< i count)
                         (number-of (collect channel (loop repeat rounds
                                                           collect (note 1 :body 10000)))))
                        (t (wait-until (lambda ()
                                         (< (/ limit 2) (setf peak (held-octets server)))))
                           (dotimes (i count) (signal-it gate))
                           rounds)))))
          (is (every (lambda (answer) (= rounds answer)) answers) "~S" answers))
        (is (< (/ limit 2) peak limit))))))
