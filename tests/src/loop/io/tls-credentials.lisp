;;;; Credentials: refused arguments, files that change, objects that are kept and freed.

(in-package #:clgrpc.tests.loop)

(defun certificate-file (name)
  (support:certificate-file name))

(defun server-credentials (&rest arguments)
  (apply #'tls-credentials (append arguments (list :certificate (certificate-file "server.pem")
                                                   :key (certificate-file "server.key")))))

(defun client-credentials (&rest arguments)
  (apply #'tls-credentials (append arguments (list :roots (certificate-file "ca.pem")))))

(test server-names-refused
  ;; OpenSSL takes "" for no name to check, and one with a dot before it for all that end so
  (dolist (name (list "" "." ".example" " " "a b" (string (code-char 0)) "é.example" "a/b"
                      (make-string 256 :initial-element #\a)))
    (signals misuse (tls-credentials :server-name name))
    (with-still-loops (loop)
      (signals os:tls-error (open-end loop (client-credentials) :client :name name))))
  (with-still-loops (loop)
    (signals os:tls-error (open-end loop (client-credentials) :client :name nil))
    (with-ends ((end loop (client-credentials :verify nil) :client :name nil))
      (is-true end)))
  (dolist (name '("example" "a.example." "a_b.xn--bcher-kva.example" "127.0.0.1" "::1"))
    (is-true (tls-credentials :server-name name))))

(defmacro tls-complaint (form)
  `(handler-case (progn ,form nil)
     (os:tls-error (error) (princ-to-string error))))

(test credentials-refused
  (dolist (arguments '((:certificate 1) (:key "x") (:roots nil) (:client-certificates :perhaps)
                       (:server-name 5) (:check-seconds -1) (:verify :none)))
    (signals misuse (apply #'tls-credentials arguments)))
  ;; secrets are not shown
  (dolist (arguments '((:certificate "c" :key ("s3cret")) (:password ("s3cret"))))
    (handler-case (fail "~S" (apply #'tls-credentials arguments))
      (misuse (error) (is (not (search "s3cret" (princ-to-string error)))))))
  (signals misuse (check-credentials :tls :client))
  (signals misuse (check-credentials (tls-credentials) :server))
  (check-credentials (tls-credentials) :client))

(test files-of-credentials-have-a-limit
  "A longer file is refused, and its change is still noticed; each octet is a character."
  (support:with-folder (directory)
    (let ((path (merge-pathnames "long.pem" directory))
          (most clgrpc.loop::+most-pem-octets+))
      (flet ((fill-file (length)
               (with-open-file (stream path :direction :output :if-exists :supersede
                                            :element-type 'octet)
                 (write-sequence (fill (make-octets length) 233) stream))
               (clgrpc.loop::file-digest path)))
        (let ((digest (fill-file most)) (text (clgrpc.loop:pem-text path)))
          (is (= most (length text)))
          (is (eql #\LATIN_SMALL_LETTER_E_WITH_ACUTE (char text (1- most))))
          (is-true digest)
          (is (not (eql digest (fill-file (1+ most))))))
        (is (search (format nil "The key ~A cannot be read: it is longer than ~D octets" path most)
                    (tls-complaint (clgrpc.loop:pem-text path "key"))))))))

(test credentials-that-cannot-be-used
  (flet ((complaint (role &rest arguments)
           (tls-complaint (check-credentials (apply #'tls-credentials arguments) role))))
    (is (search "The file nowhere.pem cannot be read"
                (complaint :client :roots "nowhere.pem")))
    (is (search "There is no certificate in"
                (complaint :client :roots (certificate-file "server.key"))))
    (is (search "does not match the certificate"
                (complaint :server :certificate (certificate-file "server.pem")
                                   :key (certificate-file "renewed.key"))))
    (is (search "is encrypted, and :password does not decrypt it"
                (complaint :server :certificate (certificate-file "client.pem")
                                   :key (certificate-file "locked.key") :password "wrong")))
    (is (null (complaint :server :certificate (certificate-file "client.pem")
                                 :key (certificate-file "locked.key") :password "open")))))

(defun call-with-variable (name value function)
  "Call FUNCTION while the environment variable NAME has VALUE."
  (let ((before (sb-posix:getenv name)))
    (sb-posix:setenv name value 1)
    (unwind-protect (funcall function)
      (if before (sb-posix:setenv name before 1) (sb-posix:unsetenv name)))))

(test roots-of-the-environment
  "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH replaces the system's roots, and no others, for clients and
servers; an error in the file is reported as the file's."
  (flet ((complaint (value role &rest arguments)
           (call-with-variable "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH" value
                               (lambda ()
                                 (tls-complaint
                                  (check-credentials (apply #'tls-credentials arguments) role)))))
         (roots (value)
           (call-with-variable "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH" value
                               (lambda ()
                                 (clgrpc.loop::roots-in-use (tls-credentials))))))
    (is (search "The file nowhere.pem cannot be read" (complaint "nowhere.pem" :client)))
    (is (search "The file nowhere.pem cannot be read"
                (complaint "nowhere.pem" :server :client-certificates :require
                           :certificate (certificate-file "server.pem")
                           :key (certificate-file "server.key"))))
    (is (null (complaint "nowhere.pem" :client :roots (certificate-file "ca.pem"))))
    (is (null (complaint "nowhere.pem" :client :verify nil)))
    (is (null (complaint (certificate-file "ca.pem") :client)))
    (is (equal (certificate-file "ca.pem") (roots (certificate-file "ca.pem"))))
    (is (eq :system (roots "")))))

(test cipher-suites-of-the-environment
  "Both ends use GRPC_SSL_CIPHER_SUITES; an error in it is reported as its own."
  (flet ((complaint (value role &rest arguments)
           (call-with-variable "GRPC_SSL_CIPHER_SUITES" value
                               (lambda ()
                                 (tls-complaint
                                  (check-credentials (apply #'tls-credentials arguments) role))))))
    (loop for (value text) in '(("TLS_AES_999" "GRPC_SSL_CIPHER_SUITES has TLS_AES_999")
                                ("nonsense" "GRPC_SSL_CIPHER_SUITES has no cipher suite")
                                ("AES128-SHA" "GRPC_SSL_CIPHER_SUITES has no cipher suite"))
          do (is (search text (complaint value :client :roots (certificate-file "ca.pem"))))
             (is (search text (complaint value :server
                                         :certificate (certificate-file "server.pem")
                                         :key (certificate-file "server.key")))))
    (dolist (value '("" "TLS_AES_256_GCM_SHA384" "ECDHE-ECDSA-AES128-GCM-SHA256:AES128-SHA"))
      (is (null (complaint value :client :roots (certificate-file "ca.pem")))))))

(test credentials-as-text
  (flet ((text (name) (uiop:read-file-string (certificate-file name))))
    (let ((both (tls-credentials :certificate (concatenate 'string (text "client.key")
                                                           (text "client.pem"))
                                 :roots (text "ca.pem"))))
      (check-credentials both :client)
      (check-credentials both :server)
      (is (not (search "BEGIN" (prin1-to-string both))) "keys are not printed")
      (is (search "PEM" (prin1-to-string both))))))

(defun call-with-certificate-copy (function)
  (uiop:with-temporary-file (:pathname certificate)
    (uiop:with-temporary-file (:pathname key)
      (flet ((install (name) (support:install-certificate name certificate key)))
        (install "server")
        (funcall function certificate key #'install)))))

(defun server-context-of (credentials)
  (clgrpc.loop::with-context (context credentials :server)
    (clgrpc.loop::context-pointer context)))

(test files-are-read-when-credentials-are-checked
  "This holds for a server that speaks HTTP/1.1 as well: its connections do not read files."
  (dolist (role '(:server :http-server))
    (call-with-certificate-copy
     (fn (certificate key _install)
       (let ((credentials (tls-credentials :certificate certificate :key key
                                           :check-seconds nil)))
         (check-credentials credentials role)
         (delete-file key)
         (is (plusp (clgrpc.loop::with-context (context credentials role)
                      (clgrpc.loop::context-pointer context))))
         (uiop:copy-file (certificate-file "server.key") key)))))
  (signals misuse (check-credentials (tls-credentials) :http-server)))

(test credentials-renewed
  (call-with-certificate-copy
   (lambda (certificate key install)
     (let* ((credentials (tls-credentials :certificate certificate :key key :check-seconds 0))
            (first (server-context-of credentials)))
       (funcall install "renewed")
       (let ((second (server-context-of credentials)))
         (is (/= first second))
         ;; only half of it has been copied: the old one goes on
         (uiop:copy-file (certificate-file "server.key") key)
         (with-logged (events)
           (is (= second (server-context-of credentials)))
           (is (member :credentials-not-reloaded (events) :key #'second)))
         (uiop:copy-file (certificate-file "server.pem") certificate)
         (is (/= second (server-context-of credentials))))))))

(test long-files-are-not-read
  "Neither at first nor on renewal: a file as long as the heap, and an endless device."
  (call-with-certificate-copy
   (fn (certificate key _install)
     (let* ((credentials (tls-credentials :certificate certificate :key key :check-seconds 0))
            (first (server-context-of credentials)))
       (with-open-file (stream certificate :direction :output :if-exists :overwrite
                                           :element-type 'octet)
         (file-position stream (* 20 (expt 2 30)))
         (write-byte 10 stream))
       (with-logged (events)
         (is (= first (server-context-of credentials)))
         (is (equal '(:credentials-not-reloaded) (mapcar #'second (events))))
         (is (search "longer" (princ-to-string (events))))))
     (signals os:tls-error (server-context-of (tls-credentials :certificate certificate :key key)))
     (signals os:tls-error
       (server-context-of (tls-credentials :certificate "/dev/zero" :key key))))))

(test files-that-hang-hold-no-loop-up
  "A certificate on a disk that hangs, here a pipe: connections get the previous one."
  (with-logged (events)
    (call-with-certificate-copy
     (fn (certificate key _install)
       (let* ((credentials (tls-credentials :certificate certificate :key key :check-seconds 0))
              (first (server-context-of credentials))
              (asked (sb-thread:make-semaphore)) (contexts '()))
         (delete-file certificate)
         (sb-posix:mkfifo (uiop:native-namestring certificate) #o600)
         (with-loops (loop) ()
           (unwind-protect
                (progn
                  (dotimes (i 20)
                    (post loop (lambda ()
                                 (push (server-context-of credentials) contexts)
                                 (sb-thread:signal-semaphore asked))))
                  (is-true (await asked 20))
                  (is (equal (list first) (remove-duplicates contexts))))
             ;; the reader, which has opened the pipe, finds its end
             (loop while (clgrpc.loop::tls-credentials-looking credentials)
                   do (let ((writer (ignore-errors
                                     (sb-posix:open (uiop:native-namestring certificate)
                                                    (logior sb-posix:o-wronly
                                                            sb-posix:o-nonblock)))))
                        (when writer (sb-posix:close writer)))
                      (sb-thread:thread-yield))
             (delete-file certificate)
             (uiop:copy-file (certificate-file "server.pem") certificate)))
         (is (= first (server-context-of credentials))))))))

(test files-of-others-that-hang-are-waited-for-together
  "However many there are, the loop waits no longer than for one."
  (call-with-certificate-copy
   (fn (certificate key _install)
     (flet ((credentials (certificate key &rest more)
              (apply #'tls-credentials :certificate certificate :key key :check-seconds 0 more)))
       (let* ((others (loop repeat 3 collect (credentials certificate key)))
              (own (credentials (certificate-file "server.pem") (certificate-file "server.key")
                                :others others))
              (queues (mapcar #'clgrpc.loop::tls-credentials-looked (cons own others)))
              (first (server-context-of own))
              (ends '()) (go-on (sb-thread:make-semaphore)))
         (sb-int:encapsulate 'clgrpc.loop::file-digest 'hang
                             (lambda (function source)
                               (when (eq source certificate) (await go-on))
                               (funcall function source)))
         (sb-int:encapsulate 'clgrpc.loop:await-notice 'note-end
                             (lambda (function queue mutex end-ns &rest more)
                               (when (member queue queues) (push end-ns ends))
                               (apply function queue mutex end-ns more)))
         (with-loops (loop) ()
           (unwind-protect
                (progn (is (= first (on-loop loop (lambda () (server-context-of own)))))
                       (is (every #'clgrpc.loop::tls-credentials-looking others)))
             (sb-int:unencapsulate 'clgrpc.loop:await-notice 'note-end)
             (sb-int:unencapsulate 'clgrpc.loop::file-digest 'hang)
             (sb-thread:signal-semaphore go-on (length others))))
         (is (= 1 (length (remove-duplicates ends)))))))))

(test the-end-of-a-check-of-files-wakes-those-who-wait-for-it
  "A thread that needs credentials continues when their files are checked, not only after its own
limit."
  (let* ((credentials (tls-credentials :certificate (certificate-file "server.pem")
                                       :key (certificate-file "server.key") :check-seconds 0))
         (queue (clgrpc.loop::tls-credentials-looked credentials))
         (first (server-context-of credentials))
         (woken '()))
    (with-replaced (('clgrpc.loop:await-notice
                     (lambda (function of &rest more)
                       (let ((value (apply function of more)))
                         (when (eq of queue) (push (and value t) woken))
                         value))))
      (is (= first (server-context-of credentials))))
    (is (plusp (length woken)))
    (is (every #'identity woken))))

(test credentials-from-the-future
  ;; the clock was set back: files with later dates do not count as changed
  (call-with-certificate-copy
   (lambda (certificate key install)
     (flet ((date ()
              (let ((next-year (+ (- (get-universal-time) 2208988800) (* 365 86400))))
                (dolist (file (list certificate key))
                  (sb-posix:utimes (uiop:native-namestring file) next-year next-year)))))
       (date)
       (let* ((credentials (tls-credentials :certificate certificate :key key :check-seconds 0))
              (first (server-context-of credentials)))
         (dotimes (i 3) (is (= first (server-context-of credentials))))
         (funcall install "renewed")
         (date)
         (is (/= first (server-context-of credentials))))))))

(test credentials-reloaded-on-request
  (call-with-certificate-copy
   (lambda (certificate key install)
     (let* ((credentials (tls-credentials :certificate certificate :key key :check-seconds nil))
            (first (server-context-of credentials)))
       (funcall install "renewed")
       (is (= first (server-context-of credentials)))
       (reload-credentials credentials)
       (let ((second (server-context-of credentials)))
         (is (/= first second))
         (delete-file key)
         (signals os:tls-error (reload-credentials credentials))
         (is (= second (server-context-of credentials))))
       (uiop:copy-file (certificate-file "server.key") key)))))

(test credentials-reloaded-all-or-none
  "If the files for one other name cannot be used, nothing changes for any name."
  (call-with-certificate-copy
   (lambda (certificate key install)
     (call-with-certificate-copy
      (lambda (other-certificate other-key install-other)
        (let* ((other (tls-credentials :certificate other-certificate :key other-key
                                       :check-seconds nil))
               (credentials (tls-credentials :certificate certificate :key key
                                             :check-seconds nil :others (list other)))
               (before (list (server-context-of credentials) (server-context-of other))))
          (flet ((now () (list (server-context-of credentials) (server-context-of other))))
            (funcall install "renewed")
            (delete-file other-key)
            (signals os:tls-error (reload-credentials credentials))
            (is (equal before (now)))
            (funcall install-other "renewed")
            (reload-credentials credentials)
            (is (every #'/= before (now))))))))))

(test credentials-of-a-saved-core
  (let* ((credentials (server-credentials)) (before (server-context-of credentials)))
    (clgrpc.os::forget-libraries)
    (is (plusp (server-context-of credentials)))
    (is (/= (os:openssl-instance) -1))
    (is (plusp before))))

(test names-of-trust-domains
  (dolist (name (list "a" "a-_.9" (make-string 255 :initial-element #\a)))
    (is-true (clgrpc.loop::trust-domain-p name)))
  (dolist (name (list "" "A" "a:1" "é" "a/b" (make-string 256 :initial-element #\a)))
    (is-false (clgrpc.loop::trust-domain-p name))))
