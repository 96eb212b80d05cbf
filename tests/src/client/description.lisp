;;;; Channels described: plists and text, while the channel lives and after.

(in-package #:clgrpc.tests.client)

(defun facts-of (addresses key)
  "The values for KEY in ADDRESSES, a list that CHANNEL-ADDRESSES returns."
  (mapcar (lambda (facts) (getf facts key)) addresses))

(test a-channel-tells-of-its-addresses
  "States, calls under way, and for each address the picks and the failed attempts."
  (with-started (server (start-probe (list :ask (lambda (note call)
                                                  (if (zerop (number-of note))
                                                      (grpc:fail :not-found "nothing")
                                                      (double note call)))
                                           :chat #'echo)))
    (grpc:with-channel (channel (grpc:server-address server))
      (multiple-value-bind (addresses facts) (grpc:channel-addresses channel)
        (is (null addresses))
        (is (eq :idle (getf facts :state)))
        (is (string= (grpc:server-address server) (getf facts :target))))
      (dotimes (i 5) (ask channel (note 1) :timeout 10))
      (signals grpc:not-found (ask channel (note 0) :timeout 10))
      (grpc:with-call (call (lab.bench:chat channel :open :timeout 10))
        (speak call 3)
        (multiple-value-bind (addresses facts) (grpc:channel-addresses channel)
          (is (equal `((:address ,(grpc:server-address server) :state :ready :connections 1
                        :calls 1 :picks 7 :failures 1 :failed-connects 0))
                     addresses))
          (is (eq :ready (getf facts :state)))
          (is (string= "pick_first" (getf facts :policy)))
          (is (eql 0 (getf facts :waiting)))))
      (let ((text (with-output-to-string (stream) (describe channel stream))))
        (is (search (format nil "a channel to ~A, ready, 0 calls waiting"
                            (grpc:server-address server))
                    text))
        (is (search "pick_first" text))
        (is (search "ready, 1 connection, 0 calls, 7 picked" text) "~A" text)))))

(test a-channel-tells-why-it-waits
  "The description has the reason, and the time of the next attempt."
  (grpc:with-channel (channel (format nil "ipv4:~A,~A" (free-address) (free-address))
                              :balance :round-robin :backoff-initial-seconds 30)
    (signals grpc:unavailable (ask channel (note 1) :timeout 10))
    (eventually (equal '(1 1) (facts-of (grpc:channel-addresses channel) :failed-connects)))
    (multiple-value-bind (addresses facts) (grpc:channel-addresses channel)
      (is (equal '(:transient-failure :transient-failure) (facts-of addresses :state)))
      (is (every (lambda (seconds) (< 20 seconds 40)) (facts-of addresses :next-attempt)))
      (is (every (lambda (text) (search "refused" text)) (facts-of addresses :last-error)))
      (is (equal '(0 0) (facts-of addresses :connections)))
      (is (string= "round_robin" (getf facts :policy)))
      (is (search "refused" (getf facts :last-error))))
    (let ((text (with-output-to-string (stream) (describe channel stream))))
      (is (search "transient-failure, 0 connections" text))
      (is (search ", 1 attempt to connect failed, the next in " text) "~A" text))))

(test a-veto-is-told
  (with-core (core puppet :round-robin)
    (let ((subchannel (first (wake-with core puppet "127.0.0.1:1"))))
      (client::change-state (connection-set-of subchannel) :ready)
      (client:impose-veto subchannel 'test :transient-failure "it says so")
      (let ((facts (client::describe-address subchannel)))
        (is (eq :transient-failure (getf facts :state)))
        (is (string= "it says so" (getf facts :last-error)))))))

(test what-a-resolver-says-is-told
  (with-core (core puppet :round-robin)
    (client::wake core)
    (client:deliver puppet (list (client::parse-backend '("127.0.0.1:1" :zone "a"))) nil)
    (let ((facts (client::describe-address (subchannel-to core "127.0.0.1:1"))))
      (is (equal '(:zone "a") (getf facts :attributes)))
      (is (search "(:ZONE \"a\")" (client::address-line facts))))))

(test a-closed-channel-is-described
  (let ((channel (grpc:make-channel (free-address))))
    (grpc:close-channel channel)
    (multiple-value-bind (addresses facts) (grpc:channel-addresses channel)
      (is (null addresses))
      (is (eq :shutdown (getf facts :state))))
    (is (search "shutdown" (with-output-to-string (stream) (describe channel stream))))))

(test the-tokens-for-retries-are-told
  (with-core (core puppet nil :default '(:retry-throttling (:max-tokens 4 :token-ratio 0.5)))
    (client::wake core)
    (push-config puppet nil)
    (flet ((tokens () (getf (client::describe-core core) :retry-tokens)))
      (is (null (tokens)))
      (setf (client::core-throttle core)
            (attempt:current-throttle nil (client::core-config core)))
      (attempt::count-failure (client::core-throttle core) nil :unavailable :never)
      (is (= 3 (tokens))))))

(test a-policy-that-follows-is-told
  "It is shown with the facts of policies, in lines indented by the child's depth."
  (let ((text (with-output-to-string (stream)
                (client::write-policy '(:policy "outlier_detection" :ejected 1
                                        :children ((:policy "round_robin"))
                                        :next (:policy "pick_first"))
                                      stream 2))))
    (is (string= (format nil "  outlier_detection (:EJECTED 1)~%    round_robin~%~
                              ~2@Tto be followed by~%    pick_first~%")
                 text))))

(test an-address-is-described-in-one-line
  "This holds whatever the attributes and the printer's settings are."
  (let ((*print-pretty* t) (*print-right-margin* 40))
    (is (null (find #\Newline (client::address-line
                               '(:address "127.0.0.1:50051" :state :ready :connections 1 :calls 0
                                 :picks 4 :failures 0 :failed-connects 0
                                 :attributes (:weight 3 :zone "zone-a"))))))))
