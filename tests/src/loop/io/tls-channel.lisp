;;;; TLS connections on loops, between our own two ends and with peers that do not speak it.

(in-package #:clgrpc.tests.loop)

(defun listen-with-tls (loops handler credentials &key on-connection)
  (listen-on "127.0.0.1:0" (make-server-options) loops
             (fn (loop byte-channel _peer)
               (let ((connection (make-connection
                                  loop (make-tls-byte-channel loop byte-channel credentials :server)
                                  handler)))
                 (when on-connection (funcall on-connection connection))))))

(defstruct (talk (:copier nil))
  "A TLS client on a loop: what it RECEIVED, its SECURITY at the first octets, and why it CLOSED."
  connection (received (make-buffer)) (expected 0) security closed
  (done (sb-thread:make-semaphore)) (over (sb-thread:make-semaphore)))

(defun talk-handler (talk)
  (make-handler
   :input (lambda (connection octets start end)
            (setf (talk-security talk) (byte-channel-security (connection-byte-channel connection)))
            (append-octets (talk-received talk) octets :start start :end end)
            (when (>= (buffer-fill (talk-received talk)) (talk-expected talk))
              (sb-thread:signal-semaphore (talk-done talk)))
            end)
   :closed (fn (_connection reason)
             (setf (talk-closed talk) (list reason))
             (sb-thread:signal-semaphore (talk-over talk)))))

(defun begin-talk (loop address credentials octets &key (name "localhost")
                                                     (expected (length octets)))
  "Connect to ADDRESS, send OCTETS and return a talk."
  (let ((talk (make-talk :expected expected)) (made (sb-thread:make-semaphore)))
    (connect-to loop address (seconds-ns 10)
                (lambda (byte-channel condition)
                  (when condition (error condition))
                  (let ((connection (make-connection
                                     loop
                                     (make-tls-byte-channel loop byte-channel credentials :client
                                                                 :server-name name)
                                     (talk-handler talk))))
                    (setf (talk-connection talk) connection)
                    (append-octets (connection-output connection) octets)
                    (sb-thread:signal-semaphore made))))
    (is-true (await made))
    talk))

(defun end-talk (loop talk)
  "Close TALK in order, and return the reason of its end."
  (on-loop loop (lambda () (close-connection (talk-connection talk))))
  (is-true (await (talk-over talk)))
  (first (talk-closed talk)))

(defun received (talk)
  (let ((buffer (talk-received talk)))
    (subseq (buffer-octets buffer) (buffer-start buffer) (buffer-end buffer))))

(defmacro with-tls-server ((loop address &key (handler '(make-handler :input #'echo))
                                           (credentials '(server-credentials)))
                           &body body)
  "Evaluate BODY with a TLS server of HANDLER at ADDRESS on LOOP. No session may remain."
  (let ((before (gensym)))
    `(let ((,before (os:tls-session-count)))
       (with-loops (,loop) ()
         (let ((,address (listener-address (listen-with-tls (list ,loop) ,handler ,credentials))))
           ,@body))
       (is (= ,before (os:tls-session-count)) "sessions are left"))))

(test tls-echo
  (with-tls-server (loop address)
    (dolist (count '(1 100 16384 16385 65536 1000000))
      (let* ((octets (pattern count))
             (talk (begin-talk loop address (client-credentials) octets)))
        (is-true (await (talk-done talk)))
        (is-true (equalp octets (received talk)))
        (is (equal "TLSv1.3" (security-protocol (talk-security talk))))
        (is (equal "O=clgrpc tests,CN=server"
                   (os:certificate-subject (security-peer-certificate (talk-security talk)))))
        (is (null (end-talk loop talk)))))))

(test tls-many-at-once
  ;; sessions that take turns do not disturb each other
  (with-tls-server (loop address)
    (let* ((credentials (client-credentials))
           (payloads (loop for i below 20 collect (pattern (+ 1 (* i 20011)))))
           (talks (loop for octets in payloads
                        collect (begin-talk loop address credentials octets))))
      (loop for talk in talks
            for octets in payloads
            do (is-true (await (talk-done talk)))
               (is-true (equalp octets (received talk))))
      (dolist (talk talks) (is (null (end-talk loop talk)))))))

(test tls-resumed
  (with-tls-server (loop address)
    (let ((credentials (client-credentials)))
      (flet ((resumed-p (credentials)
               (let ((talk (begin-talk loop address credentials (octets-of 1))))
                 (is-true (await (talk-done talk)))
                 (end-talk loop talk)
                 (security-resumed-p (talk-security talk)))))
        (is (equal '(nil t t) (loop repeat 3 collect (resumed-p credentials))))
        (is (not (resumed-p (client-credentials))) "other credentials have other tickets")
        (reload-credentials credentials)
        (is (equal '(nil t) (loop repeat 2 collect (resumed-p credentials))))))))

(test tls-sessions-that-fail-are-not-resumed
  "After a session has failed the next one is not resumed, since the ticket may be the cause."
  (with-tls-server (loop address)
    (let* ((allowed t)
           (credentials (client-credentials :peer-check (fn (_certificate) allowed))))
      (flet ((talk () (begin-talk loop address credentials (octets-of 1)))
             (resumed-p (talk)
               (is-true (await (talk-done talk)))
               (end-talk loop talk)
               (security-resumed-p (talk-security talk))))
        (is (equal '(nil t) (loop repeat 2 collect (resumed-p (talk)))))
        (setf allowed nil)
        (let ((refused (talk)))
          (is-true (await (talk-over refused)))
          (is (null (talk-security refused))))
        (setf allowed t)
        (is (equal '(nil t) (loop repeat 2 collect (resumed-p (talk)))))))))

(test tls-slow-reader
  ;; what the peer does not take counts as unsent, and comes complete in the end
  (let* ((length 20000000) (octets (pattern length)) (sent 0) (most 0) (server nil))
    (with-tls-server (loop address
                      :handler (make-handler
                                :input (fn (connection _octets _start end)
                                         (setf server connection)
                                         (connection-output connection)
                                         end)
                                :fill (lambda (connection)
                                        (setf most (max most (connection-unsent connection)))
                                        ;; FILL is asked again only if it adds something
                                        (let* ((much (< (connection-unsent connection) 200000))
                                               (end (min length (+ sent (if much 100000 1000)))))
                                          (append-octets (connection-output connection) octets
                                                         :start sent :end end)
                                          (setf sent end)))))
      (let ((talk (begin-talk loop address (client-credentials) (octets-of 1)
                              :expected length)))
        (on-loop loop (lambda () (stop-reading (talk-connection talk))))
        (dotimes (i 50) (settle loop))
        (let ((stuck sent))
          (dotimes (i 20) (settle loop))
          (is (= stuck sent) "the server waits")
          (is (< stuck length)))
        (on-loop loop (lambda () (start-reading (talk-connection talk))))
        (is-true (await (talk-done talk)))
        (is-true (equalp octets (received talk)))
        (is (< most 500000))
        (is-true server)
        (end-talk loop talk)))))

(test tls-bare-peers
  ;; whoever does not speak TLS gets an alert, and the server a reason
  (let ((reasons '()) (told (sb-thread:make-semaphore)))
    (with-tls-server (loop address
                      :handler (make-handler :input #'echo
                                             :closed (fn (_connection reason)
                                                       (push reason reasons)
                                                       (sb-thread:signal-semaphore told))))
      (with-clients (plain silent) (address)
        (client-send plain (ascii-octets (format nil "PRI * HTTP/2.0~C~C" #\Return #\Newline)))
        (client-receive plain 100)      ; perhaps an alert
        (is-true (client-ended-p plain))
        (is-true (await told))
        (is (search "does the peer speak without TLS?" (first reasons)))
        (end-client-output silent)
        (is-true (await told))
        (is (equal "TLS handshake failed: the peer closed the connection" (first reasons))))
      (check-gone loop))))

(test tls-server-that-is-none
  (with-loops (loop) ()
    (let* ((listener (listen-with (list loop)
                                  (make-handler
                                   :input (fn (connection _octets _start end)
                                            (append-octets (connection-output connection)
                                                           (ascii-octets "what is that?"))
                                            end))))
           (talk (begin-talk loop (listener-address listener) (client-credentials) (octets-of 1))))
      (is-true (await (talk-over talk)))
      (is (search "does the peer speak without TLS?" (first (talk-closed talk)))))))

(test tls-strangers
  "Each end learns from the other why it is refused."
  (flet ((ends (server client)
           (let ((at-client nil) (at-server nil) (told (sb-thread:make-semaphore)))
             (with-tls-server (loop address
                               :credentials server
                               :handler (make-handler :input #'echo
                                                      :closed (fn (_connection reason)
                                                                (setf at-server reason)
                                                                (sb-thread:signal-semaphore told))))
               (let ((talk (begin-talk loop address client (octets-of 1))))
                 (is-true (await (talk-over talk)))
                 (is-true (await told))
                 (is (zerop (buffer-fill (talk-received talk))))
                 (setf at-client (first (talk-closed talk)))))
             (list at-client at-server)))
         (own (name)
           (tls-credentials :certificate (certificate-file (format nil "~A.pem" name))
                            :key (certificate-file (format nil "~A.key" name)))))
    (loop
      for (server client at-client at-server)
        in `((,(own "expired") ,(client-credentials)
              "TLS handshake failed: certificate verify failed: certificate has expired"
              "alert certificate expired")
             (,(server-credentials) ,(client-credentials :server-name "other.example")
              ,(format nil "hostname mismatch (the certificate is for localhost, *.test.example, ~
                            127.0.0.1, ::1, not for other.example); :server-name")
              "alert bad certificate")
             (,(server-credentials)
              ,(tls-credentials :roots (certificate-file "elsewhere.pem") :server-name "localhost")
              "(the certificate's issuer is not trusted; :roots sets the trusted certificates)"
              "alert")
             ;; the text about a refused certificate has a limit, and no control characters
             (,(own "many") ,(client-credentials)
              "(the certificate is for \\x1b[7m.example, 192.0.2.1, c.example, d, e and 2 more, not "
              "alert")
             ;; a subject is no name (RFC 9525)
             (,(own "nameless") ,(client-credentials)
              "hostname mismatch (the certificate is for no name, not for localhost)"
              "alert bad certificate")
             (,(server-credentials :roots (certificate-file "ca.pem")) ,(client-credentials)
              "certificate required (the server requires a certificate: give :certificate"
              "peer did not return a certificate"))
      do (with-logged (events)
           (is-true (every #'search (list at-client at-server) (ends server client)))
           (is (= 1 (count-if (lambda (event)
                                (and (eq :handshake-failed (second event))
                                     (eq :server (getf (cddr event) :role))))
                              (events))))))))

(test tls-abrupt-end
  ;; a peer that is gone without close_notify, in the handshake and after it
  (let ((reasons '()) (told (sb-thread:make-semaphore)))
    (with-tls-server (loop address
                      :handler (make-handler :input #'echo
                                             :closed (fn (_connection reason)
                                                       (push reason reasons)
                                                       (sb-thread:signal-semaphore told))))
      (let ((talk (begin-talk loop address (client-credentials) (octets-of 1))))
        (is-true (await (talk-done talk)))
        (on-loop loop (lambda () (close-connection (talk-connection talk) :abort t)))
        (is-true (await told))
        (is (equal '(nil) reasons)))
      (with-clients (client) (address)
        ;; the beginning of a ClientHello
        (client-send client (octets-of 22 3 1 1 0 1 0)))
      (is-true (await told))
      (is (stringp (first reasons)))
      (check-gone loop))))

(test tls-new-keys
  (with-tls-server (loop address)
    (let ((talk (begin-talk loop address (client-credentials) (octets-of 1))))
      (is-true (await (talk-done talk)))
      (dotimes (i 20)
        (setf (talk-expected talk) (+ 2 i))
        (on-loop loop (lambda ()
                        (os:update-keys (clgrpc.loop::tls-ssl
                                         (byte-channel-state
                                          (connection-byte-channel (talk-connection talk)))))
                        (append-octets (connection-output (talk-connection talk)) (octets-of i))))
        (is-true (await (talk-done talk))))
      (is (null (end-talk loop talk))))))

(test tls-too-many-answers
  (let ((reason nil) (told (sb-thread:make-semaphore)))
    (with-tls-server (loop address
                      :handler (make-handler :input #'echo
                                             :closed (fn (_connection text)
                                                       (setf reason text)
                                                       (sb-thread:signal-semaphore told))))
      (let ((talk (begin-talk loop address (client-credentials) (octets-of 1))))
        (is-true (await (talk-done talk)))
        (flet ((update-keys ()
                 (let ((tls (byte-channel-state (connection-byte-channel (talk-connection talk)))))
                   (when (clgrpc.loop::tls-established-p tls)
                     (dotimes (i 100)
                       (os:update-keys (clgrpc.loop::tls-ssl tls))
                       (os:shake-hands (clgrpc.loop::tls-ssl tls)))
                     (clgrpc.loop::send-records tls)
                     ;; with data between, or that alone would be too much
                     (append-octets (connection-output (talk-connection talk)) (pattern 200))))))
          (loop repeat 200
                until (talk-closed talk)
                do (on-loop loop #'update-keys)))
        (is-true (await told))
        (is (equal "TLS: the peer requests too many answers" reason))))))

(defun send-new-keys (end count)
  "Let END change its keys COUNT times, without requesting this of its peer."
  (let ((tls (end-tls end)))
    (dotimes (i count)
      (clgrpc.os::ssl-key-update (clgrpc.loop::tls-ssl tls) 0)
      (os:shake-hands (clgrpc.loop::tls-ssl tls))
      (clgrpc.loop::send-records tls))))

(defun check-idle-records (role)
  "An end of ROLE accepts new keys now and then, but not without data."
  (with-still-loops (ours theirs)
    (flet ((pair ()
             (if (eq role :server)
                 (list (open-end ours (server-credentials) :server)
                       (open-end theirs (client-credentials) :client))
                 (list (open-end ours (client-credentials) :client)
                       (open-end theirs (server-credentials) :server)))))
      (destructuring-bind (end peer) (pair)
        (unwind-protect
             (progn
               (is-true (apply #'shake-ends (if (eq role :client) (list end peer) (list peer end))))
               (dotimes (i 100)
                 (send-new-keys peer 100)
                 (is-true (exchanged-p peer end (pattern 200))))
               ;; an octet in each record is data
               (dotimes (i 3000) (write-end peer (octets-of 7)))
               (carry peer end)
               (is (= clgrpc.loop:+wants-read+ (read-end end)))
               (send-new-keys peer 100000)
               (carry peer end)
               (is (= clgrpc.loop:+broken+ (read-end end)))
               (is (search "too much that is not data"
                           (byte-channel-failure (end-byte-channel end))))
               (is (< 2000000 (buffer-fill (end-arrived end))) "the rest is not examined"))
          (close-end end)
          (close-end peer))))))

(test tls-new-keys-and-nothing-else (mapc #'check-idle-records '(:server :client)))

;;; Many handshakes, and long ones

(defun client-hello (loop)
  "A ClientHello in its record."
  (with-ends ((client loop (client-credentials) :client))
    (write-end client (octets-of))
    (let ((sent (end-sent client)))
      (subseq (buffer-octets sent) (buffer-start sent) (buffer-end sent)))))

(defun arrive (connection end octets)
  "Let OCTETS arrive at END, CONNECTION's."
  (append-octets (end-arrived end) octets)
  (clgrpc.loop::note-event connection clgrpc.loop:+readable+))

(defun answered-p (end)
  (plusp (buffer-fill (end-sent end))))

(defun call-with-handshakes (function peers &optional (more #'identity))
  "Call FUNCTION with a loop on which whatever is done takes a millisecond, and with the ends of
handshakes that begin at its next turn, one with each of PEERS. Then MORE is called with the loop."
  (let ((now +noon-ns+))
    (with-still-loops (theirs)
      (let ((hello (client-hello theirs))
            (ends (loop repeat (length peers) collect (make-end))))
        (with-still-loop (loop :clock (lambda () (incf now 1000000)))
          (flet ((begin (argument)
                   (declare (ignore argument))
                   (loop for peer in peers
                         for end in ends
                         for descriptor from 1000001
                         do (arrive (make-connection
                                     loop
                                     (make-tls-byte-channel
                                      loop (make-byte-channel **memory** descriptor "memory" end)
                                      (server-credentials) :server :peer peer)
                                     (make-handler :input #'takes-all))
                                    end hello))
                   (funcall more loop)))
            (defer loop #'begin nil)
            (make-turn-of loop)
            (is (notany #'answered-p ends))
            (funcall function loop ends)))))))

(test tls-handshakes-share-a-turn
  "A turn performs some of many handshakes; it serves all others, and the rest come soon."
  (let ((served 0))
    (call-with-handshakes
     (lambda (loop ends)
       (make-turn-of loop)
       (is (= 3 served) "the connection behind all handshakes is served")
       (is (= 3 (count-if #'answered-p ends)))
       (make-turn-of loop)
       (is (= 6 (count-if #'answered-p ends)))
       (loop repeat 5 do (make-turn-of loop))
       (is (every #'answered-p ends)))
     (make-list 20)
     (lambda (loop)
       (multiple-value-bind (connection other)
           (memory-connection loop 1000050 (fn (_connection _octets start end)
                                             (incf served (- end start))
                                             end))
         (arrive connection other (octets-of 1 2 3)))))))

(test tls-handshakes-of-peers-take-turns
  "A peer with a single handshake is answered in the third turn, though two others have begun many.
The earliest handshakes continue in each turn."
  (call-with-handshakes
   (lambda (loop ends)
     (make-turn-of loop)
     (is (= 3 (count-if #'answered-p ends)) "the first peer is alone so far")
     (make-turn-of loop)
     (is (= 5 (count-if #'answered-p (subseq ends 0 10))))
     (is (= 6 (count-if #'answered-p ends)) "the second peer has its step")
     (make-turn-of loop)
     (is-true (answered-p (first (last ends))))
     (is (= 7 (count-if #'answered-p (subseq ends 0 10))))
     (loop repeat 10 do (make-turn-of loop))
     (is (every #'answered-p ends)))
   (append (make-list 10 :initial-element :one) (make-list 10 :initial-element :two) '(:three))))

(test tls-handshakes-of-very-many-peers
  "While each turn begins with new peers whose handshakes it cannot begin, those that came first
continue: a peer's second handshake is not behind all first ones."
  (call-with-handshakes
   (lambda (loop ends)
     (loop repeat 3 do (make-turn-of loop))
     (is-true (answered-p (third ends)))
     (loop repeat 200 do (make-turn-of loop))
     (is (every #'answered-p ends)))
   (list* 0 :one :one (loop for i from 1 to 100 collect i))))

(test output-leaves-with-the-end-of-the-handshake
  "A server sends first. The last octets of a handshake arrive in a turn that has done its share of
handshakes, so a later turn reads them, and no event follows: the output is sent nevertheless."
  (with-still-loops (theirs)
    (with-still-loop (loop)
      (with-ends ((client theirs (client-credentials) :client))
        (let* ((server (make-end))
               (inner (make-byte-channel **memory** 1000001 "memory" server))
               (connection (make-connection
                            loop
                            (make-tls-byte-channel loop inner (server-credentials) :server)
                            (make-handler :input #'takes-all))))
          (flet ((arrive ()
                   (carry client server)
                   (clgrpc.loop::note-event connection clgrpc.loop:+readable+))
                 (be-busy ()            ; with the handshakes of others
                   (setf (clgrpc.loop::event-loop-slow-turn loop) (1+ (event-loop-turns loop))
                         (clgrpc.loop::event-loop-slow-ns loop) +ns-per-second+)))
            (append-octets (connection-output connection) (octets-of 1 2 3))
            (write-end client (octets-of))
            (arrive)
            (make-turn-of loop)
            (carry server client)
            (read-end client)
            (is-true (established-p client))
            (arrive)
            (be-busy)
            (make-turn-of loop)
            (is (= 0 (carry server client)) "not yet")
            (make-turn-of loop)
            (carry server client)
            (read-end client)
            (is (equalp #(1 2 3) (let ((got (end-got client)))
                                   (subseq (buffer-octets got) (buffer-start got)
                                           (buffer-end got)))))))))))

(defmacro with-shaking-connection ((connection end loop role) &body body)
  "Evaluate BODY with CONNECTION of ROLE on LOOP, which does not run, over END."
  `(with-still-loop (,loop)
     (let* ((,end (make-end))
            (,connection (make-connection
                          ,loop
                          (make-tls-byte-channel ,loop
                                                 (make-byte-channel **memory** 1000001 "memory"
                                                                    ,end)
                                                 ,(ecase role
                                                    (:client '(client-credentials))
                                                    (:server '(server-credentials)))
                                                 ,role :server-name "localhost")
                          (make-handler :input #'takes-all)
                          :account (make-account))))
       ,@body)))

(test a-handshake-goes-on-when-there-is-room
  "A server has nothing to write yet, and the kernel takes a part of its first flight. The rest is
sent when there is room, though nothing to read arrives."
  (with-still-loops (theirs)
    (with-ends ((client theirs (client-credentials) :client))
      (with-shaking-connection (connection server loop :server)
        (flet ((turn (event)
                 (clgrpc.loop::note-event connection event)
                 (make-turn-of loop))
               (charged ()
                 (account-sum (clgrpc.loop::connection-account connection))))
          (setf (end-room server) 100)
          (write-end client (octets-of))
          (carry client server)
          (turn clgrpc.loop:+readable+)
          (is (= 100 (carry server client)))
          (is (<= 40000 (charged)))
          (dolist (room '(200 100000))
            (setf (end-room server) room)
            (turn clgrpc.loop:+writable+)
            (carry server client))
          (read-end client)
          (is-true (established-p client))
          (carry client server)
          (turn clgrpc.loop:+readable+)
          (is (zerop (charged)))
          (write-end client (make-octets 10000))
          (carry client server 5000)
          (turn clgrpc.loop:+readable+)
          (is (<= 16384 (charged)))
          (carry client server)
          (turn clgrpc.loop:+readable+)
          (is (zerop (charged))))))))

(test a-handshake-begins-when-there-is-room
  "The kernel takes a part of the ClientHello, or nothing. The rest is sent when there is room,
though the server sends nothing before."
  (dolist (room '(100 0))
    (with-still-loops (theirs)
      (with-ends ((server theirs (server-credentials) :server))
        (with-shaking-connection (connection client loop :client)
          (append-octets (connection-output connection) (octets-of 1 2 3))
          (setf (end-room client) room)
          (make-turn-of loop)
          (is (= room (carry client server)))
          (setf (end-room client) 100000)
          (clgrpc.loop::note-event connection clgrpc.loop:+writable+)
          (make-turn-of loop)
          (is (plusp (carry client server)))
          (read-end server)
          (is (plusp (carry server client)))
          (clgrpc.loop::note-event connection clgrpc.loop:+readable+)
          (make-turn-of loop)
          (carry client server)
          (read-end server)
          (is-true (established-p server))
          (is (= 3 (buffer-fill (end-got server))) "and then the data that waits"))))))

(test a-handshake-that-a-proxy-ends-says-why
  "The reason is the proxy's, whichever read or write of the handshake gets it."
  (flet ((reason-of (byte-channel result)
           (is (= clgrpc.loop:+broken+ result))
           (clgrpc.loop:byte-channel-failure byte-channel)))
    (with-still-loops (loop)
      (loop for (refusals . calls) in '(((#.clgrpc.loop:+wants-read+) :write)
                                        ((#.clgrpc.loop:+wants-read+ #.clgrpc.loop:+wants-read+)
                                         :write :write)
                                        ((#.clgrpc.loop:+wants-read+ #.clgrpc.loop:+wants-read+)
                                         :write :read))
            do (with-ends ((client loop (client-credentials) :client))
                 (setf (clgrpc.loop:byte-channel-failure (clgrpc.loop::tls-inner (end-tls client)))
                       "the proxy says no"
                       (end-refusals client) (append refusals (list clgrpc.loop:+broken+)))
                 (let ((result nil))
                   (dolist (call calls)
                     (setf result (ecase call
                                    (:write (write-end client (octets-of)))
                                    (:read (read-end client)))))
                   (is (equal "the proxy says no"
                              (reason-of (end-byte-channel client) result)))))))))

(test a-write-that-fails-after-the-handshake-says-why
  (with-still-loops (ours theirs)
    (with-ends ((client ours (client-credentials) :client)
                (server theirs (server-credentials) :server))
      (is-true (shake-ends client server))
      (setf (clgrpc.loop:byte-channel-failure (clgrpc.loop::tls-inner (end-tls client)))
            "it is gone"
            (end-refusals client) (list clgrpc.loop:+broken+))
      (is (= clgrpc.loop:+broken+ (write-end client (octets-of 1))))
      (is (equal "it is gone"
                 (clgrpc.loop:byte-channel-failure (end-byte-channel client)))))))

(test a-handshake-begins-when-a-proxy-lets-it
  "The connection to a proxy takes nothing until its answer was read. The answer arrives in a turn
that has done its share of handshakes, so a later turn reads it, and no event follows."
  (with-still-loops (theirs)
    (with-ends ((server theirs (server-credentials) :server))
      (with-shaking-connection (connection client loop :client)
        ;; a refused read or write is offered once more, to learn the awaited event
        (flet ((refuse (count)
                 (setf (end-refusals client)
                       (make-list count :initial-element clgrpc.loop:+wants-read+))))
          (append-octets (connection-output connection) (octets-of 1 2 3))
          (refuse 2)
          (make-turn-of loop)
          (clgrpc.loop::note-event connection clgrpc.loop:+readable+)
          (setf (clgrpc.loop::event-loop-slow-turn loop) (1+ (event-loop-turns loop))
                (clgrpc.loop::event-loop-slow-ns loop) +ns-per-second+)
          (refuse 1)
          (make-turn-of loop)
          (is (= 0 (carry client server)))
          (make-turn-of loop)
          (is (plusp (carry client server)))
          (read-end server)
          (is (plusp (carry server client))))))))

(test tls-endless-handshakes-end
  "A peer may be slow and send much, but not for long, and its octets are read in small parts."
  (with-still-loops (loop)
    (with-ends ((end loop (server-credentials) :server))
      ;; a ClientHello of 16,384 octets, in records of one octet each
      (flet ((send (&rest octets)
               (dolist (octet octets)
                 (append-octets (end-arrived end) (octets-of 22 3 1 0 1 octet)))))
        (send 1 0 #x40 0)
        (loop repeat 20000 do (send 0)))
      (flet ((left () (buffer-fill (end-arrived end))))
        (let ((before (left)))
          (is (= clgrpc.loop:+wants-read+
                 (byte-channel-read (end-byte-channel end) *end-octets* 0 (length *end-octets*))))
          (is-true (byte-channel-more (end-byte-channel end)))
          (is (= clgrpc.loop::+shaking-octets+ (- before (left))))
          (is (= clgrpc.loop:+broken+ (read-end end)))
          (is (search "before the handshake is over" (byte-channel-failure (end-byte-channel end))))
          (is (< (- before (left)) (+ clgrpc.loop::+max-shaking-octets+
                                      (* 2 clgrpc.loop::+shaking-octets+)))
              "the rest is not examined"))))))

(test tls-connections-leave-nothing
  (with-tls-server (loop address)
    (let ((credentials (client-credentials)))
      (flet ((cycle (count)
               (loop repeat count
                     do (let ((talk (begin-talk loop address credentials (octets-of 1 2 3))))
                          (await (talk-done talk))
                          (end-talk loop talk))
                        (check-gone loop))))
        (cycle 20)
        (let ((before (support:foreign-octets)))
          (cycle 100)
          (is (< (- (support:foreign-octets) before) 100000)))))))
