;;;; One address that wants everything: connections, handshakes, calls, descriptors. Others, who
;;;; come from another address, are served, the largest user gives way, and the log says so.

(in-package #:clgrpc.tests.abuse)

(defparameter *other* #(127 0 0 2) "The address of those who come from elsewhere.")

(defun refused-text (&optional (from 0))
  "What has been logged as refused, one text, without the first FROM warnings."
  (format nil "~{~A~%~}" (mapcar (lambda (plist) (getf plist :what))
                                 (nthcdr from (reverse (events-of :refused))))))

(defun admission-of (server)
  (server::server-admission server))

(test silent-connections-of-one-address
  "As many as may be not ready, and renewed all the time: others, even of the same address, get in,
the oldest gives way."
  (with-victim (address :server server :watched nil
                        :options '(:max-handshakes 50 :preface-timeout-seconds 60))
    (with-connected (silent 120 address)
      (eventually (= 70 (loop for attacker in silent count (gone-p attacker))))
      (is (= 51 (connected-count server)))
      (dolist (from (list *other* nil))
        (dotimes (i 10)
          (with-connected (more 20 address)
            (with-attacker (decent address :from from) (is-true (served-p decent))))))
      (is (search "of 127.0.0.1 (max-handshakes)" (refused-text)))
      (is (< (length (events-of :refused)) 60)))
    (is (= 50 (server::admission-max-handshakes (admission-of server))))))

(test bursts-leave-places-to-others
  "One address comes so fast that as many of its connections as may be have yet to go: others that
come between get a place all the same, however few may be leaving at a time."
  (with-victim (address :server server :watched nil
                        :options '(:max-handshakes 40 :max-connections 100))
    (is (stringp address))
    (let ((admission (server::make-admission (server::server-options server) 100)))
      (flet ((seated-p (name)
               (let* ((entry (server::ensure-entry server admission name))
                      (permit (server::try-to-permit admission entry)))
                 (when (server::permit-p permit)
                   (enter-ring permit (server::peer-entry-unready entry))
                   t))))
        (dotimes (i 40) (is-true (seated-p "greedy")))
        (is (< 5 (loop repeat 100 count (seated-p "greedy")) 20) "some, in the place of others")
        (dotimes (i 10)
          (is-true (seated-p (format nil "other ~D" i)))
          (is-false (seated-p "greedy")))))))

(test half-prefaces-of-one-address
  "The same with connections that have begun to speak, over TLS."
  (let ((hello (octets-of #x16 #x03 #x01 #x02 #x00 #x01 #x00 #x01 #xFC #x03 #x03)))
    (with-victim (address :server server :watched nil
                          :options (list :max-handshakes 20 :preface-timeout-seconds 60
                                         :credentials
                                         (grpc:tls-credentials
                                          :certificate (support:certificate-file "server.pem")
                                          :key (support:certificate-file "server.key")))
                          :channel-options (list :credentials
                                                 (grpc:tls-credentials
                                                  :roots (support:certificate-file "ca.pem"))))
      (with-connected (attackers 60 address)
        (dolist (attacker attackers) (throw-octets attacker hello))
        (eventually (= 21 (connected-count server)))
        (grpc:with-channel (channel address
                                    :credentials (grpc:tls-credentials
                                                  :roots (support:certificate-file "ca.pem")))
          (is (= 2 (number-of (ask channel (note 1))))))))))

(test idle-connections-of-one-address
  "As many as may be, all in order: a peer that has fewer gets its place from the one that has most,
which is told by GOAWAY; that itself gets no more."
  (with-victim (address :server server :watched nil
                        :options '(:max-connections 20 :max-connections-per-peer 30))
    (with-connected (greedy 19 address)
      (mapc #'greet greedy)
      (is-true (every #'served-p greedy))
      (with-connected (more 3 address) (is (every #'turned-away-p more)))
      (with-connected (others 2 address :from *other*)
        (mapc #'greet others)
        (is-true (every #'served-p others))
        ;; the bystander's is the one that has been idle for longest
        (is (= 1 (loop for attacker in greedy
                       count (eq :enhance-your-calm (and (gone-p attacker)
                                                         (hear-to-the-end attacker))))))
        (is (= 20 (connected-count server)))
        (is (search "of 127.0.0.1 (max-connections)" (refused-text)))))))

(test busy-connections-of-one-address
  "The same where each has a call under way, which ends :unavailable."
  (with-victim (address :server server :watched nil
                        :options '(:max-connections 10 :max-connections-per-peer 10))
    (with-connected (greedy 9 address)
      (let ((ids (loop for attacker in greedy
                       do (greet attacker)
                       collect (demand attacker "/lab.Bench/Collect" (note-octets 1) :end nil))))
        (eventually (= 9 (loop for server-loop in (server:server-loops server)
                               sum (server::server-loop-open server-loop))))
        (with-connected (others 4 address :from *other*)
          (mapc #'greet others)
          (is-true (every #'served-p others)))
        (is (<= 3 (count :unavailable (mapcar (lambda (attacker id)
                                                (and (gone-p attacker) (verdict attacker id)))
                                              greedy ids))
                4))))))

(test peers-that-were-refused-are-forgotten
  "A server that is full keeps nothing of those that it has no place for."
  (with-victim (address :server server :watched nil
                        :options '(:max-connections 1 :max-connections-per-peer 1))
    (let ((peers (server::admission-peers (admission-of server))))
      (dotimes (i 40)
        (with-attacker (refused address :from (vector 127 0 1 (1+ i)) :polite nil)
          (is (eq :closed (hear-to-the-end refused)))))
      (eventually (>= 3 (hash-table-count peers))))))

(test calls-of-one-address
  "Requests that never end, on many connections: another peer's calls begin, and those of another
connection of the same peer."
  (with-victim (address :server server :watched nil :options '(:max-calls 200))
    (with-connected (greedy 4 address)
      (mapc #'greet greedy)
      (dolist (attacker greedy)
        (dotimes (i 100) (demand attacker "/lab.Bench/Collect" (note-octets 1) :end nil)))
      (dolist (attacker (rest greedy))  ; until those have been read
        (verdict attacker (demand attacker "/lab.Bench/Ask" (note-octets 1))))
      (is (eq :resource-exhausted
              (verdict (first greedy)
                       (demand (first greedy) "/lab.Bench/Ask" (note-octets 1)))))
      (with-attacker (decent address :from *other*)
        (let ((ids (loop repeat 12
                         collect (demand decent "/lab.Bench/Collect" (note-octets 1) :end nil))))
          (is-true (served-p decent))
          (dolist (id ids) (throw-frames decent `(:rst-stream ,id :cancel)))))
      (with-attacker (decent address) (is-true (served-p decent)))
      (is (search "of 127.0.0.1 (max-calls)" (refused-text))))))

;;; Descriptors

(defmacro with-descriptor-limit ((count) &body body)
  "Evaluate BODY while this process may have COUNT descriptors."
  `(let ((before (set-descriptor-limit ,count)))
     (unwind-protect (progn ,@body)
       (set-descriptor-limit before))))

(test descriptors-are-derived
  "What the process may have, less what is open and what is spared, is what there is for
connections, and one peer has half of that."
  (with-log ()
    (let ((open (os:open-descriptor-count)))
      (with-descriptor-limit (400)
        (with-started (server (start-probe (list :ask #'answer) :raise-descriptor-limit nil))
          (let ((allowed (server::admission-max-connections (admission-of server)))
                (event (first (events-of :max-connections-lowered))))
            (is (<= (- 400 open 110) allowed (- 400 open 90)))
            (is (= (ceiling allowed 2) (server::admission-max-per-peer (admission-of server))))
            (is (= allowed (getf event :max-connections)))
            (is (= 400 (getf event :limit) (os:descriptor-limit)))))
        (with-started (server (start-probe (list :ask #'answer) :max-connections 500))
          (is (= 500 (server::admission-max-connections (admission-of server))))
          (is (< 500 (os:descriptor-limit)) "the limit is raised"))))))

(test descriptors-of-one-address
  "Connections of one address, more than there are descriptors for, which others in the process use
up as well: another address is served."
  (with-log ()
    (with-descriptor-limit ((+ 300 (os:open-descriptor-count)))
      (let ((server (start-probe (list :ask #'answer) :raise-descriptor-limit nil
                                                      :spare-descriptors 8))
            (files '()))
        (unwind-protect
             (let ((address (grpc:server-address server)))
               (setf (server::admission-max-per-peer (admission-of server)) 1000)
               (dotimes (i 100) (push (open "/dev/null") files))
               ;; each has both of its ends in this process
               (with-connected (greedy 90 address)
                 (dolist (attacker greedy) (greet attacker))
                 (loop until (or (events-of :cannot-accept) (< 130 (length files)))
                       do (ignore-errors (push (open "/dev/null") files))
                          (ignore-errors (close-socket (attacker-socket (connect address)))))
                 (dotimes (i 4) (close (pop files)))
                 (with-attacker (decent address :from *other*)
                   (is-true (served-p decent)))))
          (mapc #'close files)
          (grpc:stop-server server))))))

(test peers-by-address
  "Who counts as one: an IPv6 network, a mapped address and the IPv4 address, a user."
  (flet ((name (text) (server::peer-name (loop:make-tcp-byte-channel -1 text))))
    (is (string= "10.1.2.3" (name "10.1.2.3:77")))
    (is (string= "10.1.2.3" (name "[::ffff:10.1.2.3]:77")))
    (is (string= "2001:db8:1:2::/64" (name "[2001:db8:1:2:3:4:5:6]:77")))
    (is (string= (name "[2001:db8:1:2:3:4:5:6]:77") (name "[2001:db8:1:2::1]:78")))
    (is (string/= (name "[2001:db8:1:2::1]:77") (name "[2001:db8:1:3::1]:77")))
    (is (string/= (name "[fe80::1]:77") (name "[fe80::2]:77"))))
  (let ((path (format nil "/tmp/clgrpc-peers-~D" (random (expt 2 60) (make-random-state t)))))
    (with-probe (channel :server server
                         :options (list :listen (list "127.0.0.1:0"
                                                      (format nil "unix:~A" path))))
        (:ask #'answer)
      (grpc:with-channel (local (format nil "unix:~A" path))
        (is (= 2 (number-of (ask local (note 1)))))
        (is (= 2 (number-of (ask channel (note 1)))))
        (is (equal (list "127.0.0.1"
                         (format nil "user ~D of unix:~A" (sb-unix:unix-getuid) path))
                   (sort (loop for name being the hash-keys
                                 of (server::admission-peers (admission-of server))
                               collect name)
                         #'string<)))))))
