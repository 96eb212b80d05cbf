;;;; Channels through proxies: the choice of the proxy, the dialogue with it, and calls through
;;;; proxies of other projects, by HTTP's CONNECT and by SOCKS5.

(in-package #:clgrpc.tests.client)

;;; Which proxy

(defun environment (&rest names-and-values)
  "A function like POSIX-GETENV, which knows NAMES-AND-VALUES only."
  (lambda (name)
    (second (member name names-and-values :test #'string=))))

(defun environment-proxy-text (host variables)
  "The address of the proxy that a channel to HOST has in the environment VARIABLES, or nil."
  (let ((proxy (proxy::environment-proxy host 50051 (apply #'environment variables))))
    (and proxy (loop:target-text (proxy:proxy-target proxy)))))

(test the-environment-names-the-proxy
  "grpc_proxy comes before https_proxy, that before http_proxy; empty ones count as none."
  (flet ((proxy (&rest variables) (environment-proxy-text "greeters.example" variables)))
    (is (null (proxy)))
    (is (equal "a:1" (proxy "http_proxy" "http://a:1")))
    (is (equal "b:2" (proxy "http_proxy" "http://a:1" "https_proxy" "http://b:2/")))
    (is (equal "c:3" (proxy "https_proxy" "http://b:2" "grpc_proxy" "c:3")))
    (is (equal "b:2" (proxy "https_proxy" "http://b:2" "grpc_proxy" "")))
    (is (equal "d:80" (proxy "https_proxy" "http://user:pass@d")))
    (is (equal "d:1080" (proxy "https_proxy" "socks5h://d")))
    (is (equal "[::1]:8" (proxy "https_proxy" "http://[::1]:8")))))

(test hosts-without-a-proxy
  "no_proxy excepts names, domains, addresses and networks, with a port or without; this machine has
none in any case."
  (flet ((by-proxy-p (host exceptions)
           (and (environment-proxy-text host (list "https_proxy" "http://p:1"
                                                   "no_proxy" exceptions))
                t)))
    (loop for (host exceptions by-proxy)
            in '(("a.example" "" t)
                 ("a.example" "*" nil)
                 ("a.example" "b.example, a.example" nil)
                 ("A.Example" "a.example" nil)
                 ("x.a.example" "a.example" nil)
                 ("x.a.example" ".a.example" nil)
                 ("a.example" ".a.example" nil)
                 ("xa.example" "a.example" t)
                 ("a.example" "x.a.example" t)
                 ("a.example" "a.example:50051" nil)
                 ("a.example" "a.example:443" t)
                 ("a.example" "a.example:x,a.example:,a.example:5x" t)
                 ("10.1.2.3" "10.1.2.3" nil)
                 ("10.1.2.3" "10.1.0.0/16" nil)
                 ("10.1.2.3" "10.2.0.0/16" t)
                 ("10.1.2.3" "10.1.2.3/40,::/0" t)
                 ("10.1.2.3" "::10.1.2.3,::a01:203" t)
                 ("0.0.0.5" "::5,::5/128,::/0" t)
                 ("::5" "0.0.0.5,0.0.0.5/32,0.0.0.0/0" t)
                 ("::5" "[0.0.0.5]:50051,0.0.0.5:50051" t)
                 ("fd00::5" "fd00::/8" nil)
                 ("fd00::5" "[fd00::5]:50051" nil)
                 ("fd00::5" "fd00:0::5" nil)
                 ("localhost" "" nil)
                 ("127.0.0.1" "" nil)
                 ("::1" "" nil))
          do (is (eq by-proxy (by-proxy-p host exceptions)) "~A with no_proxy=~A" host exceptions))
    (is (null (environment-proxy-text "a.example" '("https_proxy" "http://p:1" "no_grpc_proxy" "*"
                                                    "no_proxy" "b.example"))))))

(test proxies-that-are-none
  "The error is signalled when the channel is made, and does not show the password."
  (flet ((text (&rest arguments)
           (handler-case (grpc:close-channel (apply #'grpc:make-channel arguments))
             (grpc:misuse (error) (princ-to-string error))
             (:no-error (&rest values)
               (declare (ignore values))
               (fail "~S" arguments)
               ""))))
    (dolist (url '("https://p:1" "http://" "http://u:secret@" "http://u%zz:secret@p:1"
                   "http://u:%zz@p:1" "ftp://u:secret@p:1" "http://p:x" 5))
      (is (not (search "secret" (text "a:1" :proxy url)))))
    (is (search "https_proxy" (handler-case
                                  (environment-proxy-text "a" '("https_proxy" "ftp://p"))
                                (grpc:misuse (error) (princ-to-string error)))))
    (dolist (long (list (format nil "socks5://u:~A@p:1" (make-string 256 :initial-element #\s))
                        (format nil "socks5://~A:s@p:1" (make-string 256 :initial-element #\u))))
      (is (search "255 octets" (text "a:1" :proxy long))))
    (is (search "255 octets" (text (format nil "~A:1" (make-string 256 :initial-element #\a))
                                   :proxy "socks5://p:1"))
        "a cut name would be another host's")
    (let ((short (make-string 255 :initial-element #\a)))
      (grpc:close-channel (grpc:make-channel (format nil "~A:1" short)
                                             :proxy (format nil "socks5://~A:~:*~A@p:1" short))))
    (dolist (target '("unix:/run/a.sock" "ipv4:10.0.0.1:1,10.0.0.2:1" "dns://10.0.0.1/a:1"))
      (text target :proxy "http://p:1"))))

;;; What is said

(defun dialogue-proxy (url)
  "The PROXY to greeters.example:50051 with URL."
  (proxy::parse-proxy url "The :proxy" "greeters.example" 50051))

(defun hold-dialogue (proxy answer step)
  "Talk with PROXY, which answers ANSWER, octets, STEP octets at a time. Return the octets sent to
it, the outcome, and the rest of ANSWER that was not consumed."
  (let ((dialogue (proxy::make-dialogue proxy))
        (input (make-octets (length answer)))
        (start 0) (end 0) (said '()))
    (loop
      (multiple-value-bind (consumed outcome output) (funcall dialogue input start end)
        (incf start consumed)
        (when output (push output said))
        (when (or outcome (and (zerop consumed) (= end (length answer))))
          (return (values (apply #'concatenate 'octets (reverse said)) outcome
                          (subseq answer start))))
        (when (zerop consumed)
          (let ((new (min (length answer) (+ end step))))
            (replace input answer :start1 end :start2 end :end2 new)
            (setf end new)))))))

(defun http-answer (status-line &rest more)
  (string-octets (format nil "~A~C~C~{~A~C~C~}~C~C~A" status-line #\Return #\Newline
                         (loop for line in (butlast more)
                               append (list line #\Return #\Newline))
                         #\Return #\Newline (or (first (last more)) ""))))

(defun joined-octets (&rest parts)
  "The octets of PARTS: octets, texts and numbers below 256."
  (apply #'concatenate 'octets (mapcar (lambda (part)
                                         (etypecase part
                                           (string (string-octets part))
                                           (octets part)
                                           ((unsigned-byte 8) (list part))))
                                       parts)))

(defun puppet-byte-channel (say hear)
  "A byte channel whose writes return the value of SAY for the octets, and whose reads that of HEAR,
which also gets their start and end."
  (loop:make-byte-channel
   (loop:make-byte-channel-kind
    :name "puppet" :shutdown #'identity :close #'identity
    :write (fn (_byte-channel octets start end) (funcall say (subseq octets start end)))
    :read (fn (_byte-channel octets start end) (funcall hear octets start end)))
   -1 "puppet"))

(test a-dialogue-needs-several-writes-and-reads
  "The tunnel's user gets the results of the proxy's connection; each octet is written once."
  (let* ((say '()) (hear '()) (said (make-octets 0)) (octets (make-octets 100))
         (tunnel (proxy:make-tunnel-byte-channel
                  (puppet-byte-channel
                   (lambda (octets)
                     (let ((result (pop say)))
                       (when (plusp result)
                         (setf said (joined-octets said (subseq octets 0 result))))
                       result))
                   (lambda (octets start end)
                     (let ((result (pop hear)))
                       (cond ((integerp result) result)
                             (t (replace octets result :start1 start :end1 end)
                                (length result))))))
                  (dialogue-proxy "http://p:1")))
         (whole (nth-value 2 (funcall (proxy::make-dialogue (dialogue-proxy "http://p:1"))
                                      (make-octets 0) 0 0))))
    (flet ((write-with (&rest results)
             (setf say results)
             (loop:byte-channel-write tunnel octets 0 10))
           (read-with (&rest results)
             (setf hear results)
             (loop:byte-channel-read tunnel octets 0 100)))
      (is (= loop:+wants-write+ (write-with 5)))
      (dolist (result (list loop:+wants-write+ loop:+wants-read+ loop:+broken+))
        (is (= result (write-with result))))
      (is (= loop:+wants-read+ (write-with (- (length whole) 5))))
      (is (equalp whole said))
      (is (= loop:+wants-read+ (write-with)) "nothing is left to write")
      (is (= loop:+wants-read+ (read-with (http-answer "HTTP/1.1 200" "") loop:+wants-read+)))
      (is (= loop:+wants-write+ (write-with loop:+wants-write+)) "the tunnel is open")
      (is (= 10 (write-with 10)))
      (is (equalp (joined-octets whole (subseq octets 0 10)) said)))))

(test an-answer-of-a-proxy-has-a-longest-length
  "The answer is as long as the tunnel has room for, or longer."
  (loop for (length result failure) in (list (list 16384 0 nil)
                                             (list 16385 loop:+broken+ "too long"))
        do (let* ((empty (length (http-answer "HTTP/1.1 200" "X: " "")))
                  (answer (http-answer "HTTP/1.1 200"
                                       (format nil "X: ~A" (make-string (- length empty)
                                                                        :initial-element #\x))
                                       ""))
                  (at 0)
                  (tunnel (proxy:make-tunnel-byte-channel
                           (puppet-byte-channel
                            #'length
                            (lambda (octets start end)
                              (let ((count (min 1000 (- end start) (- length at))))
                                (replace octets answer :start1 start :start2 at
                                                       :end2 (incf at count))
                                count)))
                           (dialogue-proxy "http://p:1"))))
             ;; a tunnel that has failed does so each time
             (dotimes (i 2)
               (is (= result (loop:byte-channel-read tunnel (make-octets 10) 0 10))))
             (is (equal failure (and (loop:byte-channel-failure tunnel)
                                     (search "too long" (loop:byte-channel-failure tunnel))
                                     "too long"))))))

(test what-connect-says
  "The request of CONNECT, and each possible answer, in pieces of any size."
  (let ((proxy (dialogue-proxy "http://me:p%40ss@p:1")))
    (loop for (answer expected)
            in `((,(http-answer "HTTP/1.1 200 Connection established" "X: y" "rest") t)
                 (,(http-answer "HTTP/1.0 204 OK" "rest") t)
                 (,(joined-octets (http-answer "HTTP/1.1 103 Early Hints" "Link: </a>" "")
                                  (http-answer "HTTP/1.1 100 Continue" "")
                                  (http-answer "HTTP/1.1 200 OK" "X: y" "rest"))
                  t)
                 (,(joined-octets (http-answer "HTTP/1.1 199 Wait" "")
                                  (http-answer "HTTP/1.1 502 Bad" ""))
                  "the proxy refuses: 502 Bad")
                 (,(http-answer "HTTP/1.1 100 Continue" "") nil)
                 (,(joined-octets (http-answer "HTTP/1.1 101 Switching Protocols" "")
                                  (http-answer "HTTP/1.1 200 OK" ""))
                  "the proxy refuses: 101 Switching Protocols")
                 (,(http-answer "HTTP/1.1 407 Proxy Authentication Required" "")
                  "the proxy refuses: 407 Proxy Authentication Required ~
                   (it does not take this user and password)")
                 (,(http-answer "HTTP/1.1 502 Bad" "") "the proxy refuses: 502 Bad")
                 (,(http-answer "SSH-2.0-OpenSSH" "") "the proxy does not speak HTTP/1.1")
                 (,(http-answer "" "") "the proxy does not speak HTTP/1.1")
                 (,(http-answer "HTTP/1.1" "") "the proxy does not speak HTTP/1.1")
                 (,(string-octets "HTTP/1.1 200 OK") nil))
          do (dolist (step '(1 3 10000))
               (multiple-value-bind (said outcome rest) (hold-dialogue proxy answer step)
                 (is (equal (if (stringp expected) (format nil expected) expected) outcome))
                 (when (eq t expected) (is (equalp (string-octets "rest") rest)))
                 (let ((lines (uiop:split-string (remove #\Return (octets-string said))
                                                 :separator '(#\Newline))))
                   (is (equal "CONNECT greeters.example:50051 HTTP/1.1" (first lines)))
                   (is (member "Host: greeters.example:50051" lines :test #'string=))
                   (is (member "Proxy-Authorization: Basic bWU6cEBzcw==" lines :test #'string=))
                   (is (equal '("" "") (last lines 2)))))))
    (is (null (search "Proxy-Authorization"
                      (octets-string (hold-dialogue (dialogue-proxy "http://p:1")
                                                    (make-octets 0) 1)))))))

(test what-socks-says
  "The requests of SOCKS5, with and without a password, and each answer, in pieces of any size."
  (let ((connect (joined-octets 5 1 0 3 16 "greeters.example" 195 131))
        (plain (joined-octets 5 1 0))
        (with-user (joined-octets 5 2 0 2))
        (password (joined-octets 1 2 "me" 2 "pw"))
        (other-user "the proxy refuses (it requires another user and password)")
        (wrong-password "the proxy refuses (it does not take this user and password)")
        (no-socks "the proxy does not speak SOCKS5"))
    (loop for (url answer expected . said)
            in `(("socks5://p" ,(joined-octets 5 0 5 0 0 1 1 2 3 4 0 9 "rest") t ,plain ,connect)
                 ("socks5://p" ,(joined-octets 5 0 5 0 0 3 2 "ab" 0 9 "rest") t ,plain ,connect)
                 ("socks5://p" ,(joined-octets 5 0 5 5) "the proxy refuses: connection refused"
                  ,plain ,connect)
                 ("socks5://p" ,(joined-octets 5 0 5 99) "the proxy refuses: its reason is 99"
                  ,plain ,connect)
                 ("socks5://p" ,(joined-octets 5 0 5 0 0 7 1) ,no-socks ,plain ,connect)
                 ("socks5://p" ,(joined-octets 5 255) ,other-user ,plain)
                 ("socks5://p" ,(joined-octets 5 2) ,other-user ,plain)
                 ("socks5://p" ,(joined-octets "HTTP/1.1 400 Bad") ,no-socks ,plain)
                 ("socks5://p" ,(joined-octets 5) nil ,plain)
                 ("socks5://me:pw@p"
                  ,(joined-octets 5 2 1 0 5 0 0 4 "0123456789abcdef" 0 9 "rest") t
                  ,with-user ,password ,connect)
                 ("socks5://me:pw@p" ,(joined-octets 5 2 1 1) ,wrong-password ,with-user ,password)
                 ("socks5://me:pw@p" ,(joined-octets 5 0 5 0 0 1 1 2 3) nil ,with-user ,connect))
          do (dolist (step '(1 3 10000))
               (multiple-value-bind (all outcome rest)
                   (hold-dialogue (dialogue-proxy url) answer step)
                 (is (equal expected outcome) "~A ~A" url answer)
                 (is (equalp (apply #'joined-octets said) all) "~A ~A" url answer)
                 (when (eq t expected) (is (equalp (string-octets "rest") rest))))))))

;;; Calls

(defun read-head (stream)
  "The head of a request from STREAM, as text."
  (loop with octets = (make-array 0 :element-type '(unsigned-byte 8) :adjustable t
                                                 :fill-pointer t)
        for octet = (read-byte stream nil)
        while octet
        do (vector-push-extend octet octets)
        until (search #(13 10 13 10) octets :start2 (max 0 (- (length octets) 4)))
        finally (return (octets-string (coerce octets 'octets)))))

(defun socket-stream (socket)
  (sb-bsd-sockets:socket-make-stream socket :input t :output t :element-type '(unsigned-byte 8)
                                            :buffering :full))

(defun pass-on-octets (from to socket)
  "Write the octets from the stream FROM to the stream TO, SOCKET's, until either ends; then end
SOCKET's output."
  (ignore-errors
   (loop for octet = (read-byte from nil)
         while octet
         do (write-byte octet to)
            (unless (listen from) (finish-output to))))
  (ignore-errors (sb-bsd-sockets:socket-shutdown socket :direction :io)))

(defun serve-as-proxy (socket address answer)
  "Answer the request on SOCKET with the value of ANSWER, a function of its head: octets or nil. If
these say 200, the rest is for the server at ADDRESS."
  (ignore-errors
   (with-open-stream (client (socket-stream socket))
     (let ((octets (funcall answer (read-head client))))
       (when octets
         (write-sequence octets client)
         (finish-output client)
         (when (search (string-octets " 200 ") octets)
           (let ((other (connect-socket address)))
             (with-open-stream (server (socket-stream other))
               (let ((back (sb-thread:make-thread #'pass-on-octets
                                                  :arguments (list server client socket))))
                 (pass-on-octets client server other)
                 (sb-thread:join-thread back :default nil))))))))))

(defun call-with-proxy (function address answer)
  (support:call-with-served-sockets
   (lambda (proxy) (funcall function (format nil "http://~A" proxy)))
   (lambda (socket) (serve-as-proxy socket address answer))
   :together t))

(defmacro with-proxy ((url address answer) &body body)
  "Evaluate BODY with URL bound to the URL of a proxy to ADDRESS that answers by SERVE-AS-PROXY."
  `(call-with-proxy (lambda (,url) ,@body) ,address ,answer))

(defmacro with-environment ((&rest variables) &body body)
  "Evaluate BODY while the environment has VARIABLES, of the form (name value)."
  `(unwind-protect (progn (setf ,@(loop for (name value) in variables
                                        append `((uiop:getenv ,name) ,value)))
                          ,@body)
     (setf ,@(loop for (name) in variables append `((uiop:getenv ,name) "")))))

(defparameter *established* (http-answer "HTTP/1.1 200 Connection established" ""))

(test calls-by-a-proxy
  "The proxy gets the target as it was written, which is not looked up here; messages longer than
any buffer pass in both directions."
  (let ((server (start-probe (list :ask (handling (note)
                                          note))))
        (heads '()))
    (unwind-protect
         (with-proxy (url (grpc:server-address server) (lambda (head)
                                                         (push head heads)
                                                         *established*))
           (grpc:with-channel (channel "greeters.example:50051" :proxy url)
             (is (= 1000000 (length (lab:note-body (ask channel (note 1 :body 1000000)))))))
           (is (= 1 (length heads)))
           (is (eql 0 (search "CONNECT greeters.example:50051 HTTP/1.1" (first heads))))
           (with-environment (("https_proxy" url) ("no_proxy" "other.example"))
             (grpc:with-channel (channel "greeters.example:50052")
               (is (= 10 (length (lab:note-body (ask channel (note 1 :body 10)))))))
             (is (eql 0 (search "CONNECT greeters.example:50052 HTTP/1.1" (first heads))))
             (grpc:with-channel (channel (grpc:server-address server)) ; is this machine
               (ask channel (note 1)))
             (grpc:with-channel (channel "greeters.invalid:50053" :proxy nil)
               (signals grpc:unavailable (ask channel (note 1)))))
           (is (= 2 (length heads))))
      (grpc:stop-server server))))

(test tls-by-a-proxy
  "The channel speaks TLS with the server, whose certificate must have the target's name."
  (with-started (server (start-probe (list :ask #'double) :credentials (credentials "server")))
    (with-proxy (url (grpc:server-address server) (constantly *established*))
      (grpc:with-channel (channel "localhost:50051" :proxy url :credentials (trusting nil))
        (is (= 42 (number-of (ask channel (note 21))))))
      (grpc:with-channel (channel "greeters.example:50051" :proxy url
                                  :credentials (trusting nil))
        (is (search "not for greeters.example"
                    (grpc:rpc-error-message (caught (ask channel (note 21))))))))))

(defun scripted-byte-channel (reads written)
  "A byte channel whose reads return the octets in READS, a list, one element after another, and
then nothing more. WRITTEN is a function that gets the written octets, three at a time."
  (loop:make-byte-channel
   (loop:make-byte-channel-kind
    :name "scripted"
    :read (fn (_byte-channel octets start end)
            (let* ((part (pop reads)) (count (min (length part) (- end start))))
              (when (< count (length part)) (push (subseq part count) reads))
              (replace octets part :start1 start :end1 end)
              (if (plusp count) count loop:+wants-read+)))
    :write (fn (_byte-channel octets start end)
             (let ((end (min end (+ start 3))))
               (funcall written (subseq octets start end))
               (- end start)))
    :shutdown #'identity :close #'identity)
   0 "scripted"))

(test what-comes-behind-the-answer-is-read
  "A server may send at once: its octets may come with the proxy's answer, and are read before later
ones, in as many pieces as there is room for."
  (dolist (room '(1 4 100))
    (let* ((written (make-octets 0))
           (byte-channel (proxy:make-tunnel-byte-channel
                          (scripted-byte-channel
                           (list (subseq *established* 0 10)
                                 (joined-octets (subseq *established* 10) "first")
                                 (joined-octets "second"))
                           (lambda (octets) (setf written (joined-octets written octets))))
                          (dialogue-proxy "http://p:1")))
           (octets (make-octets room))
           (read (make-octets 0)))
      ;; the request is sent piece by piece, and nothing else before the answer
      (loop until (= loop:+wants-read+
                     (loop:byte-channel-write byte-channel (joined-octets "hello") 0 5)))
      (is (eql 0 (search "CONNECT" (octets-string written))))
      (is (null (search "hello" (octets-string written))))
      (loop for count = (loop:byte-channel-read byte-channel octets 0 room)
            while (plusp count)
            do (setf read (joined-octets read (subseq octets 0 count))))
      (is (equal "firstsecond" (octets-string read)))
      (is (= 3 (loop:byte-channel-write byte-channel (joined-octets "hello") 0 5))))))

(test proxies-that-do-not-do-it
  "Calls end in time with :unavailable and the proxy's answer."
  (flet ((failure (answer &rest options)
           (with-proxy (url "127.0.0.1:1" answer)
             (grpc:with-channel (channel "greeters.example:50051" :proxy url)
               (let ((error (caught (apply #'ask channel (note 1) options))))
                 (is (typep error 'grpc:rpc-error))
                 (grpc:rpc-error-message error))))))
    (is (search "the proxy refuses: 403 Forbidden"
                (failure (constantly (http-answer "HTTP/1.1 403 Forbidden" "")))))
    (is (search "no user and password are in its URL"
                (failure (constantly
                          (http-answer "HTTP/1.1 407 Proxy Authentication Required" "")))))
    (is (search "the proxy closed the connection" (failure (constantly nil))))
    (is (search "the answer of the proxy is too long"
                (failure (constantly (joined-octets "HTTP/1.1 299 OK" 13 10
                                                (make-octets 20000))))))
    (is (search "the answer of the proxy is too long"
                (failure (constantly (apply #'joined-octets
                                            (loop repeat 2000
                                                  collect (http-answer "HTTP/1.1 100 Go" "")))))))
    (is (search "deadline" (string-downcase
                            (failure (fn (_head)
                                       (sleep 2)
                                       nil)
                                     :timeout 0.2))))))

(test channels-share-no-connection-to-different-targets
  "Two targets through one proxy have two connections, though the kernel's address is the same."
  (let ((server (start-probe (list :ask #'double))) (heads '()))
    (unwind-protect
         (with-proxy (url (grpc:server-address server) (lambda (head)
                                                         (push head heads)
                                                         *established*))
           (flet ((channel (target)
                    (grpc:make-channel target :proxy url :share-connections t)))
             (let ((channels (list (channel "a.example:1") (channel "b.example:1")
                                   (channel "a.example:1"))))
               (dolist (channel channels) (ask channel (note 1)))
               (is (= 2 (length heads)))
               (mapc #'grpc:close-channel channels))))
      (grpc:stop-server server))))

;;; Proxies of others

(defun call-by-program (url server wrong-url)
  "Calls on SERVER through the program at the given URL succeed; with WRONG-URL they fail."
  (let ((address (grpc:server-address server)))
    (grpc:with-channel (channel address :proxy url)
      (is (= 1000000 (length (lab:note-body
                              (ask channel (note 1 :body 1000000) :wait-for-ready t :timeout 20)))))
      (is (= 5 (length (numbers (watch channel (note 5)))))))
    (grpc:with-channel (channel address :proxy wrong-url)
      (is (search "the proxy refuses"
                  (grpc:rpc-error-message (caught (ask channel (note 1)))))))))

(defun port-of (address)
  (nth-value 1 (os:parse-address address)))

(defmacro with-echo-server ((server) &body body)
  `(let ((,server (start-probe (list :ask (handling (note)
                                            note)
                                     :watch #'count-up))))
     (unwind-protect (progn ,@body)
       (grpc:stop-server ,server))))

(test calls-by-tinyproxy
  (let ((path (support:need-program "tinyproxy")) (port (port-of (free-address))))
    (uiop:with-temporary-file (:pathname file :stream stream :direction :output)
      (format stream "Port ~D~%Listen 127.0.0.1~%Allow 127.0.0.1~%BasicAuth me p4ssw0rd~%" port)
      (finish-output stream)
      (support:with-program (proxy path "-d" "-c" (uiop:native-namestring file))
        (is (support:program-pid proxy))
        (with-echo-server (server)
          (call-by-program (format nil "http://me:p4ssw0rd@127.0.0.1:~D" port) server
                           (format nil "http://me:wrong@127.0.0.1:~D" port)))))))

(test calls-by-microsocks
  (let ((path (support:need-program "microsocks")) (port (port-of (free-address))))
    (support:with-program (proxy path "-i" "127.0.0.1" "-p" (princ-to-string port)
                                 "-u" "me" "-P" "p4ssw0rd")
      (is (support:program-pid proxy))
      (with-echo-server (server)
        (call-by-program (format nil "socks5://me:p4ssw0rd@127.0.0.1:~D" port) server
                         (format nil "socks5://me:wrong@127.0.0.1:~D" port))))))
