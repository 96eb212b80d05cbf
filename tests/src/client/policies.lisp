;;;; The policy round-robin: its states and turns without sockets, then with servers.

(in-package #:clgrpc.tests.client)

(defun wake-with (core puppet &rest addresses)
  (client::wake core)
  (apply #'tell-backends puppet addresses)
  (mapcar (lambda (address) (subchannel-to core address)) addresses))

(test round-robin-connects-all
  (with-core (core puppet :round-robin)
    (destructuring-bind (one two three)
        (wake-with core puppet "127.0.0.1:1" "127.0.0.1:2" "127.0.0.1:3")
      (is (every (lambda (subchannel) (eq :connecting (client:subchannel-state subchannel)))
                 (list one two three)))
      (is (eq :connecting (client:core-state core)))
      (is (= 3 (length (client:core-subchannels core)))))))

(test round-robin-states
  "Ready if a server is; connecting while one may become ready; failed if all have failed, until one
is ready again."
  (with-core (core puppet :round-robin)
    (destructuring-bind (one two) (wake-with core puppet "127.0.0.1:1" "127.0.0.1:2")
      (client::wait-for-better-times (connection-set-of one) "one is down")
      (is (eq :connecting (client:core-state core)))
      (client::wait-for-better-times (connection-set-of two) "two is down")
      (is (eq :transient-failure (client:core-state core)))
      (is (string= "two is down" (client:failure-text (client::core-picker core))))
      (client::end-wait (connection-set-of one))
      (is (eq :connecting (client:subchannel-state one)) "round_robin connects it again by itself")
      (is (eq :transient-failure (client:core-state core)) "the state does not change yet")
      (client::change-state (connection-set-of one) :ready)
      (is (eq :ready (client:core-state core)))
      (client::change-state (connection-set-of one) :idle)
      (is (eq :connecting (client:subchannel-state one)))
      (is (eq :connecting (client:core-state core)))
      (is (plusp (puppet-asked puppet))))))

(defun turns (core count)
  "The subchannels that CORE's picker picks, COUNT times."
  (loop repeat count
        collect (funcall (client:picker-function (client::core-picker core)) nil)))

(test round-robin-takes-turns
  "The ready servers get turns, by the same picker until they change."
  (with-core (core puppet :round-robin)
    (let ((subchannels (wake-with core puppet "127.0.0.1:1" "127.0.0.1:2" "127.0.0.1:3")))
      (dolist (subchannel subchannels) (client::change-state (connection-set-of subchannel) :ready))
      (let ((picked (turns core 300)))
        (is (equal '(100 100 100)
                   (mapcar (lambda (subchannel) (count subchannel picked)) subchannels)))
        (is (every #'eq picked (nthcdr 3 picked))))
      (let ((picker (client::core-picker core)))
        (client::change-state (connection-set-of (second subchannels)) :idle)
        (is (not (eq picker (client::core-picker core))))
        (let ((picked (turns core 100)))
          (is (equal '(50 0 50)
                     (mapcar (lambda (subchannel) (count subchannel picked)) subchannels))))))))

(test round-robin-keeps-who-stays
  (with-core (core puppet :round-robin)
    (destructuring-bind (one two) (wake-with core puppet "127.0.0.1:1" "127.0.0.1:2")
      (client::change-state (connection-set-of one) :ready)
      (client::change-state (connection-set-of two) :ready)
      (tell-backends puppet '("127.0.0.1:2" :weight 5) "127.0.0.1:3" "127.0.0.1:3")
      (is (eq :shutdown (client:subchannel-state one)))
      (is (eq two (subchannel-to core "127.0.0.1:2")))
      (is (equal '(:weight 5) (client:subchannel-attributes two)))
      (is (eq :connecting (client:subchannel-state (subchannel-to core "127.0.0.1:3"))))
      (is (= 2 (length (client:core-subchannels core))))
      (is (equal (list two two) (turns core 2)))
      (tell-backends puppet)
      (is (eq :transient-failure (client:core-state core)))
      (is (search "no servers" (client:failure-text (client::core-picker core))))
      (tell-backends puppet "127.0.0.1:4")
      (is (eq :connecting (client:core-state core)))
      (is (= 1 (length (client:core-subchannels core)))))))

;;; With servers

(defun call-with-named-servers (count function)
  "Call FUNCTION with the addresses of COUNT servers, and the servers. ASK and CHAT return the name
of the server that answers."
  (let ((servers (loop for i below count
                       collect (let ((name (princ-to-string i)))
                                 (start-probe
                                  (list :ask (handling (note)
                                               (note (number-of note) :text name))
                                        :chat (lambda (stream call)
                                                (grpc:do-messages (note stream)
                                                  (grpc:send call (note (number-of note)
                                                                        :text name))))))))))
    (unwind-protect (funcall function (mapcar #'grpc:server-address servers) servers)
      (dolist (server servers) (grpc:stop-server server :drain 0)))))

(defmacro with-named-servers ((addresses servers count) &body body)
  `(call-with-named-servers ,count (lambda (,addresses ,servers)
                                     (declare (ignorable ,servers))
                                     ,@body)))

(defun who-answers (channel count)
  "How many of COUNT calls on CHANNEL the servers \"0\", \"1\" and \"2\" answer, a list."
  (let ((names (loop repeat count
                     collect (lab:note-text (ask channel (note 1) :timeout 10
                                                                  :wait-for-ready t)))))
    (loop for name in '("0" "1" "2") collect (count name names :test #'string=))))

(defun all-ready-p (channel count)
  (= count (count :ready (client:core-subchannels (client::channel-core channel))
                  :key #'client:subchannel-state)))

(test calls-go-by-turns
  (with-named-servers (addresses servers 3)
    (grpc:with-channel (channel (format nil "ipv4:~{~A~^,~}" addresses) :balance :round-robin)
      (is (= 1 (number-of (ask channel (note 1)))))
      (eventually (all-ready-p channel 3))
      (is (equal '(30 30 30) (who-answers channel 90)))
      (grpc:stop-server (second servers) :drain 1)
      (eventually (all-ready-p channel 2))
      (is (equal '(30 0 30) (who-answers channel 60)))))
  (with-named-servers (addresses servers 2)
    (grpc:with-channel (channel (format nil "ipv4:~{~A~^,~}" addresses))
      (is (equal '(10 0 0) (who-answers channel 10)) "round_robin must be asked for"))))

(test unknown-policies
  (signals grpc:misuse (grpc:make-channel "127.0.0.1:1" :balance :by-name))
  (signals grpc:misuse (grpc:make-channel "127.0.0.1:1" :balance 3)))

(grpc:define-resolver shepherd "shepherd" () (:documentation "It does what tests push."))

(defvar *shepherds* '())

(defmethod grpc:start-resolver ((shepherd shepherd))
  (push shepherd *shepherds*)
  (grpc:push-addresses shepherd (uiop:split-string (grpc:resolver-name shepherd) :separator ",")))

(test updates-blame-no-server
  "A connection that ends soon because the server's address has changed does not count as ended by
its server: the next connection is made at once."
  (with-named-servers (addresses servers 2)
    (grpc:with-channel (channel (format nil "shepherd:~A" (first addresses))
                                :backoff-initial-seconds 100)
      (ask channel (note 1))
      (let ((shepherd (first *shepherds*)))
        (loop repeat 3
              do (dolist (address (reverse addresses))
                   (is-true (grpc:push-addresses shepherd (list address)))
                   ;; the channel connects without a call
                   (eventually (equal (list address) (peers-of channel)) :seconds 10)))))))

(test updates-drop-no-call
  "Calls on servers that stay or are removed continue; new calls use the new servers."
  (dolist (policy '(:pick-first :round-robin))
    (with-named-servers (addresses servers 3)
      (destructuring-bind (first second third) addresses
        (grpc:with-channel (channel (format nil "shepherd:~A,~A" first second) :balance policy)
          (ask channel (note 1))
          (let ((shepherd (first *shepherds*))
                (calls (loop repeat 4 collect (chat channel :open :timeout 60))))
            (flet ((speak-on-all ()
                     (dolist (call calls) (speak call 7))))
              (when (eq policy :round-robin)
                (eventually (all-ready-p channel 2)))
              (speak-on-all)
              (is-true (grpc:push-addresses shepherd (list second third)))
              (eventually (zerop (first (who-answers channel 1))))
              (when (eq policy :round-robin)
                (eventually (all-ready-p channel 2))
                (is (equal '(0 5 5) (who-answers channel 10))))
              (speak-on-all)
              (is-true (grpc:push-addresses shepherd (list third)))
              (eventually (equal '(0 0 1) (who-answers channel 1)))
              (speak-on-all)
              (dolist (call calls)
                (grpc:close-send call)
                (is (null (grpc:receive call)))
                (is (eq :ok (grpc:call-status call))))
              ;; the remaining server has one connection
              (eventually (equal '(0 0 1)
                                 (mapcar (lambda (server)
                                           (getf (grpc:server-statistics server) :connections))
                                         servers))))))))))

(test a-full-server-holds-up-nobody
  "Calls skip a server without a free stream while another has one, and wait if none has."
  (let ((servers (loop for limit in '(1 3)
                       collect (start-probe (list :chat #'echo)
                                            :max-concurrent-streams limit))))
    (unwind-protect
         (grpc:with-channel (channel (format nil "ipv4:~{~A~^,~}"
                                             (mapcar #'grpc:server-address servers))
                                     :balance :round-robin)
           (grpc:ensure-connected channel)
           (eventually (all-ready-p channel 2))
           (let ((calls (loop repeat 4 collect (chat channel :open :timeout 60))))
             (loop for call in calls for i from 0 do (speak call i))
             (let ((waiting (chat channel :open :timeout 60)))
               (grpc:send waiting (note 9))
               (eventually (client::waiting-calls (client::channel-core channel)))
               (dolist (call calls)
                 (grpc:close-send call)
                 (is (null (grpc:receive call))))
               (is (= 9 (number-of (grpc:receive waiting)))))))
      (dolist (server servers) (grpc:stop-server server :drain 0)))))

(test no-call-is-lost-while-one-of-two-is-replaced
  "Calls without a pause, by turns, while each server is replaced; none waits for ready."
  (let* ((servers (list (start-next "127.0.0.1:0") (start-next "127.0.0.1:0")))
         (addresses (mapcar #'grpc:server-address servers))
         (target (format nil "ipv4:~{~A~^,~}" addresses)))
    (unwind-protect
         (flet ((open-channel ()
                  (grpc:make-channel target :balance :round-robin :backoff-initial-seconds 0.02
                                            :backoff-maximum-seconds 0.05)))
           (let ((channels (list (open-channel) (open-channel))))
             (is (< 500 (call-meanwhile
                         (lambda (calls)
                           (dotimes (round 6)
                             (let ((which (mod round 2)))
                               (await-calls 100 calls)
                               (assert (grpc:stop-server (elt servers which) :drain 10))
                               (setf (elt servers which) (start-next (elt addresses which)))
                               (assert (wait-until
                                        (lambda ()
                                          (every (lambda (channel) (all-ready-p channel 2))
                                                 channels)))))))
                         channels)))
             (mapc #'grpc:close-channel channels)))
      (dolist (server servers) (grpc:stop-server server :drain 5)))))
