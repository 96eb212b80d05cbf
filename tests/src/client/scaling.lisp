;;;; More than one connection to a server (gRFC A105).

(in-package #:clgrpc.tests.client)

(defun connections-of (channel)
  (getf (first (grpc:channel-addresses channel)) :connections))

(defun config-of-connections (count)
  (list :connection-scaling (list :max-connections-per-subchannel count)))

(defmacro with-chats ((calls channel count) &body body)
  "Evaluate BODY with CALLS bound to COUNT begun calls of Chat on CHANNEL; then cancel them."
  `(let ((,calls (loop repeat ,count collect (chat ,channel :open))))
     (unwind-protect (progn ,@body)
       (mapc #'grpc:cancel ,calls))))

(test calls-get-connections-up-to-the-configs-number
  (with-probe (channel :options '(:max-concurrent-streams 2)
                       :channel-options (list :service-config (config-of-connections 3)))
      (:ask #'double :chat #'echo)
    (with-chats (calls channel 6)
      (dolist (call calls) (speak call 1))
      (is (= 3 (connections-of channel)))
      (let ((seventh (chat channel :open)))
        (eventually (client::waiting-calls (client::channel-core channel)))
        (is (= 3 (connections-of channel)) "the config allows three connections")
        (grpc:cancel (first calls))
        (speak seventh 7)
        (grpc:cancel seventh)))
    (is (= 2 (number-of (ask channel (note 1)))))))

(test one-connection-unless-the-config-says-more
  (with-probe (channel :options '(:max-concurrent-streams 1)) (:chat #'echo)
    (with-chats (calls channel 2)
      (speak (first calls) 1)
      (eventually (client::waiting-calls (client::channel-core channel)))
      (is (= 1 (connections-of channel))))))

(defun give-full-links (subchannel count)
  "Give SUBCHANNEL, which has no socket, COUNT links without a free stream."
  (let ((core (client:subchannel-core subchannel)))
    (flet ((full-link ()
             (let ((link (client::make-client-link (client:core-loop core)
                                                   (client:core-options core) subchannel))
                   (http2 (http2:make-connection :client client::**client-sink**
                                                 (client:core-options core))))
               (setf (http2:connection-peer-max-streams http2) 0
                     (wire::link-http2 link) http2)
               link)))
      (setf (client::connection-set-links (connection-set-of subchannel))
            (loop repeat count collect (full-link)))
      (client::change-state (connection-set-of subchannel) :ready))))

(test the-server-that-may-have-another-connection-gets-it
  "It gets one whichever server's turn it is when a call finds no stream."
  (dolist (turn '(0 1 2))
    (with-core (core puppet :round-robin :default (config-of-connections 2))
      (client::wake core)
      (tell-backends puppet "127.0.0.1:1" "127.0.0.1:2")
      (let ((wide (subchannel-to core "127.0.0.1:1"))
            (narrow (subchannel-to core "127.0.0.1:2")))
        (unwind-protect
             (progn
               (dolist (subchannel (list wide narrow))
                 (client::end-connect-rounds (connection-set-of subchannel) "of a test"))
               (give-full-links wide 2)
               (give-full-links narrow 1)
               (loop repeat turn
                     do (funcall (client:picker-function (client::core-picker core)) nil))
               (begin-ask core)
               (is (equal '(0 1) (mapcar (lambda (subchannel)
                                           (length (client::connection-set-connect-rounds
                                                    (connection-set-of subchannel))))
                                         (list wide narrow)))))
          (dolist (subchannel (list wide narrow))
            (setf (client::connection-set-links (connection-set-of subchannel)) '())))))))

(test the-channels-option-caps-the-config
  (with-core (core puppet nil :options (:max-connections-per-subchannel 4))
    (client::wake core)
    (flet ((most (source)
             (push-config puppet source)
             (client::most-links (first (client:core-subchannels core)))))
      (is (= 1 (most nil)))
      (is (= 3 (most (config-of-connections 3))))
      (is (= 4 (most (config-of-connections 100))) "an update changes the number"))))

(test connections-may-be-so-many-from-the-start
  (with-probe (channel :server server :channel-options '(:connections-per-subchannel 3))
      (:ask #'double)
    (ask channel (note 1))
    (eventually (= 3 (connections-of channel)))
    (let ((link (first (client::connection-set-links
                        (connection-set-of (the-subchannel channel))))))
      (loop:post (client:core-loop (client::channel-core channel))
                 (lambda () (client::abandon-link link :unavailable "of a test")))
      (is (wait-until (lambda ()
                        (and (= 3 (connections-of channel))
                             (not (member link (client::connection-set-links
                                                (connection-set-of (the-subchannel channel))))))))
          "a lost connection is replaced"))))

(test a-further-connection-that-fails-waits
  (with-core (core puppet nil :options (:backoff-initial-seconds 60))
    (client::wake core)
    (push-config puppet (config-of-connections 2))
    (let ((subchannel (first (client:core-subchannels core))))
      (setf (client::connection-set-connect-rounds (connection-set-of subchannel)) '())
      (client::change-state (connection-set-of subchannel) :ready)
      (client::pause-widening (connection-set-of subchannel) "refused")
      (is (= 1 (client::connection-set-failed-connects (connection-set-of subchannel))))
      (is (eq :ready (client:core-state core)))
      (client::ask-for-link subchannel)
      (is (null (client::connection-set-connect-rounds (connection-set-of subchannel)))
          "no attempt begins before the wait is over")
      (client::end-back-off core)
      (client::ask-for-link subchannel)
      (is (= 1 (length (client::connection-set-connect-rounds (connection-set-of subchannel))))))))

(test further-connections-end-when-they-are-not-needed
  "They end while the channel has calls on the first connection."
  (with-probe (channel :options '(:max-concurrent-streams 1)
                       :channel-options (list* :idle-seconds 1
                                               (list :service-config (config-of-connections 2))))
      (:chat #'echo)
    (let ((first (chat channel :open))
          (second (chat channel :open)))
      (speak first 1)
      (speak second 2)
      (is (= 2 (connections-of channel)))
      (grpc:cancel second)
      (eventually (= 1 (connections-of channel)))
      (speak first 3)
      (is (eq :ready (grpc:channel-state channel)))
      (grpc:cancel first))))
