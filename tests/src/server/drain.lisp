;;;; The end of a connection, GOAWAY by GOAWAY.

(in-package #:clgrpc.tests.server)

(defun drain (server-loop)
  "Drain the links of SERVER-LOOP."
  (memory:call-in-world memory:*world*
                        (lambda () (server::map-links #'server::drain-link server-loop))))

(defparameter *all-streams* #x7FFFFFFF)

(test drain-of-a-connection-without-calls
  "GOAWAY for no stream, and a PING; after its answer, GOAWAY for the last stream, and the end."
  (with-server-loop (server-loop) (:ask #'double)
    (comes server-loop)
    (asks 1 "Ask" 21)
    (answered '(1 :ok))
    (drain server-loop)
    (memory:says `(:goaway ,*all-streams* :no-error) `(:ping ,server::+drain-ping+))
    (memory:hears `(:ping-ack ,server::+drain-ping+))
    (is (equal '((:goaway 1 :no-error)) (remove-duplicates (memory:said) :test #'equal)))
    (is-true (memory:end-shut memory:*end*))
    (is (zerop (server::server-loop-link-count server-loop)))))

(test drain-lets-calls-begin-until-the-ping-is-answered
  "A call that was on its way is served, and the connection ends with the last call."
  (let ((kept nil))
    (with-server-loop (server-loop)
                      (:ask #'double :watch (fn (_note call) (setf kept call)))
      (comes server-loop)
      (drain server-loop)
      (memory:said)
      (asks 1 "Watch" 21)
      (memory:hears `(:ping-ack ,server::+drain-ping+))
      (memory:says '(:goaway 1 :no-error))
      (is (null (memory:end-shut memory:*end*)))
      (memory:call-in-world memory:*world* (lambda () (grpc:finish kept)))
      (answered '(1 :ok))
      (is-true (memory:end-shut memory:*end*)))))

(test drain-of-a-peer-that-answers-no-ping
  "The peer has a second, and a quarter of a second until that is checked."
  (with-server-loop (server-loop) (:ask #'double)
    (comes server-loop)
    (drain server-loop)
    (memory:said)
    (memory:passes 0.9)
    (memory:silent)
    (memory:passes 0.4)
    (is-true (member '(:goaway 0 :no-error) (memory:said) :test #'equal))
    (is-true (memory:end-shut memory:*end*))))

(test a-draining-peer-has-its-second-after-the-last-call
  "While a call ran the time did not count: the PING may have waited behind the call's output."
  (let ((kept nil))
    (with-server-loop (server-loop)
                      (:watch (lambda (note call) (declare (ignore note)) (setf kept call)))
      (comes server-loop)
      (asks 1 "Watch" 21)
      (drain server-loop)
      (memory:said)
      (memory:passes 0.9)
      (memory:call-in-world memory:*world* (lambda () (grpc:finish kept)))
      (answered '(1 :ok))
      (memory:passes 0.5)
      (memory:silent)
      (memory:passes 0.7)
      (is-true (member '(:goaway 1 :no-error) (memory:said) :test #'equal))
      (is-true (memory:end-shut memory:*end*)))))

(test drain-of-a-connection-that-has-said-nothing
  "HTTP/2 tells it."
  (with-server-loop (server-loop) (:ask #'double)
    (memory:connects (lambda (transport) (server::accept-link server-loop transport)))
    (memory:silent)
    (drain server-loop)
    (is (equal '(:settings :goaway :ping)
               (remove :window-update (mapcar #'first (memory:said)))))))

(test old-connections-drain
  "They drain after max-connection-age-seconds, give or take a tenth; calls that do not end are
ended after the grace."
  (with-server-loop (server-loop :options '(:max-connection-age-seconds 100
                                            :max-connection-age-grace-seconds 10))
      (:ask #'keep-open)
    (comes server-loop)
    (asks 1 "Ask" 21)
    (memory:passes 85)
    (memory:silent)
    (memory:passes 30)
    (is (equal :goaway (first (first (memory:said)))))
    (memory:hears `(:ping-ack ,server::+drain-ping+))
    (memory:said)
    (memory:passes 20)
    (is (equal '((1 :unavailable)) (statuses)))
    (is-true (memory:end-shut memory:*end*))))

(test drain-of-a-connection-that-has-yet-to-speak
  "If its first octets do not show the protocol, the connection has a second, also if it is drained
again. Then it ends without an answer, or is drained by the protocol that further octets choose."
  (dolist (goes-on '(nil t))
    (with-server-loop (server-loop :options '(:preface-timeout-seconds 600)) (:ask #'double)
      (answer-http server-loop)
      (let ((link (connects server-loop)))
        (memory:say memory:*world* memory:*end* (subseq dialogue:*preface* 0 3))
        (drain server-loop)
        (memory:passes 0.9)
        (drain server-loop)
        (memory:silent)
        (is (null (server::server-link-failure link)))
        (cond (goes-on
               (memory:say memory:*world* memory:*end* (subseq dialogue:*preface* 3))
               (is (equal '(:settings :goaway :ping)
                          (remove :window-update (mapcar #'first (memory:said))))))
              (t (memory:passes 0.2)
                 (memory:silent)
                 (is (search "drained" (server::server-link-failure link)))))))))

(test drain-of-a-connection-that-has-just-come
  "A peer that was accepted while the server stops has a second for its request. A peer that has
been mute for longer has none."
  (with-server-loop (server-loop :options '(:preface-timeout-seconds 600)) (:ask #'double)
    (answer-http server-loop)
    (let ((mute (connects server-loop)))
      (memory:passes 1)
      (setf (server::server-state (server::server-loop-server server-loop)) :draining)
      (connects server-loop)
      (drain server-loop)
      (is (search "drained" (server::server-link-failure mute)))
      (memory:say memory:*world* memory:*end*
                  (map 'octets #'char-code (wire-text "GET / HTTP/1.1|Host: a||")))
      (is (string= "HTTP/1.1 204 No Content|connection: close||"
                   (without-dates (map 'string #'code-char (memory:take-said memory:*end*)))))
      (let ((late (connects server-loop)))
        (memory:passes 0.9)
        (is (null (server::server-link-failure late)))
        (memory:passes 0.2)
        (is (search "drained" (server::server-link-failure late)))))))

;;; Handshakes of TLS

(defstruct (tls-peer (:copier nil))
  "A client of TLS at the end of a connection in memory: what ARRIVED and what it has SENT."
  channel (arrived (make-buffer)) (sent (make-buffer)))

(defparameter *tls-peer-kind*
  (loop:make-byte-channel-kind
   :name "TLS peer"
   :read (lambda (channel octets start end)
           (let* ((arrived (tls-peer-arrived (loop:byte-channel-state channel)))
                  (count (min (- end start) (buffer-fill arrived))))
             (replace octets (buffer-octets arrived) :start1 start :end1 (+ start count)
                                                     :start2 (buffer-start arrived))
             (incf (buffer-start arrived) count)
             (if (zerop count) loop:+wants-read+ count)))
   :write (lambda (channel octets start end)
            (append-octets (tls-peer-sent (loop:byte-channel-state channel)) octets
                           :start start :end end)
            (- end start))
   :shutdown (constantly nil) :close (constantly nil)))

(defun open-tls-peer (protocol)
  "A client at the end of the words' connection that offers PROTOCOL by ALPN."
  (let* ((loop (memory:world-loop memory:*world*))
         (credentials (grpc:tls-credentials :roots (support:certificate-file "ca.pem") :alpn nil))
         (offer (concatenate 'octets (list (length protocol)) (ascii-octets protocol)))
         (peer (make-tls-peer)))
    (loop::with-context (context credentials :client)
      (sb-sys:with-pinned-objects (offer)
        (os::ssl-ctx-set-alpn-protos (loop::context-pointer context)
                                     (sb-sys:sap-int (sb-sys:vector-sap offer)) (length offer))))
    (setf (tls-peer-channel peer)
          (loop:make-tls-byte-channel loop (loop:make-byte-channel *tls-peer-kind* 1 "server" peer)
                                      credentials :client :server-name "localhost"))
    peer))

(defun tls-peer-says (peer octets)
  "PEER sends OCTETS; if OCTETS is empty, PEER continues its handshake."
  (loop:byte-channel-write (tls-peer-channel peer) octets 0 (length octets))
  (let ((sent (tls-peer-sent peer)))
    (memory:say memory:*world* memory:*end*
                (subseq-octets (buffer-octets sent) (buffer-start sent) (buffer-end sent)))
    (clear-buffer sent)))

(defun tls-peer-hears (peer octets)
  "The data that PEER reads in OCTETS, which the server has sent."
  (append-octets (tls-peer-arrived peer) octets)
  (let ((channel (tls-peer-channel peer)) (area (make-octets 65536)) (heard (make-octets 0)))
    (loop for count = (loop:byte-channel-read channel area 0 (length area))
          do (incf (loop:event-loop-turns (memory:world-loop memory:*world*)))
             (when (plusp count)
               (setf heard (concatenate 'octets heard (subseq area 0 count))))
          while (or (plusp count) (loop:byte-channel-more channel)))
    heard))

(test handshakes-that-end-during-a-drain
  "A client in its handshake has a second to end it, also if the connection is drained again. Then
HTTP/1.1 answers its request, the last one, and HTTP/2 tells it to begin no more."
  (loop for (protocol . request) in `(("http/1.1" . ,(map 'octets #'char-code
                                                          (wire-text "GET / HTTP/1.1|Host: a||")))
                                      ("h2" . ,dialogue:*preface*))
        do (with-server-loop (server-loop :options '(:preface-timeout-seconds 600)) (:ask #'double)
             (setf (slot-value (server::server-loop-server server-loop) 'server::credentials)
                   (certified "server"))
             (answer-http server-loop)
             (connects server-loop)
             (let ((link (aref (server:server-loop-links server-loop) 0))
                   (peer (open-tls-peer protocol)))
               (tls-peer-says peer (make-octets 0))
               (let ((flight (memory:take-said memory:*end*)))
                 (drain server-loop)
                 (memory:passes 0.9)
                 (drain server-loop)
                 (memory:silent)
                 (is (null (server::server-link-failure link)))
                 (tls-peer-hears peer flight))
               (tls-peer-says peer request)
               (let ((answer (tls-peer-hears peer (memory:take-said memory:*end*))))
                 (if (string= "h2" protocol)
                     (is (equal '(:settings :goaway :ping)
                                (remove :window-update
                                        (mapcar #'first (dialogue:read-frame-forms
                                                         (dialogue:make-peer) answer)))))
                     (is (string= "HTTP/1.1 204 No Content|connection: close||"
                                  (without-dates (map 'string #'code-char answer))))))
               (memory:hangs-up)
               (memory:passes 3)
               (is (zerop (server::server-loop-link-count server-loop)))
               (loop:close-byte-channel (tls-peer-channel peer))
               (loop::release-area (memory:world-loop memory:*world*))))))

;;; What is done before and after

(test functions-for-the-stop-may-come-during-it
  "A function that is added while others run is called as well; later ones are refused."
  (let ((begun (make-signal)) (go-on (make-signal)) (called '()))
    (with-probe (channel :server server) (:ask #'double)
      (grpc:call-before-stop server (fn (_drain)
                                      (signal-it begun)
                                      (await-signal go-on)
                                      (push 1 called)
                                      nil))
      (let ((stopper (in-thread (grpc:stop-server server :drain 0))))
        (is (await-signal begun))
        (grpc:call-before-stop server (fn (_drain)
                                        (push 2 called)
                                        (lambda () (push 3 called))))
        (signal-it go-on)
        (sb-thread:join-thread stopper :timeout 60)
        (is (equal '(3 2 1) called))
        (signals grpc:misuse (grpc:call-before-stop server #'identity))))))
