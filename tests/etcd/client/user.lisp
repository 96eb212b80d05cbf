;;;; Users, roles and permissions; tokens that end, in calls, watches and leases.

(in-package #:clgrpc.tests.etcd)

(defun enable-users (&key (root "secret"))
  "Give *ETCD* a root with that password, and ada (password \"countess\"), whose role permits all of
a/, to read b and to write w; from then on it wants to know who asks."
  (etcd:add-user *etcd* "root" root)
  (etcd:add-role *etcd* "root")
  (etcd:grant-role *etcd* "root" "root")
  (etcd:add-user *etcd* "ada" "countess")
  (etcd:add-role *etcd* "writer")
  (etcd:grant-permission *etcd* "writer" :read-write :prefix "a/")
  (etcd:grant-permission *etcd* "writer" :read :key "b")
  (etcd:grant-permission *etcd* "writer" :write :key "w")
  (etcd:grant-role *etcd* "ada" "writer")
  (etcd:enable-authentication *etcd*))

(test users-and-roles
  (with-store (store "--bcrypt-cost" "4")
    (signals etcd:not-ready (etcd:enable-authentication *etcd*))
    (enable-users)
    (signals etcd:access-denied (etcd:fetch *etcd* "a/x"))
    (etcd:with-etcd (root (store-address store) :timeout +patience+ :user "root" :password "secret")
      (is (equal '("ada" "root") (sort (etcd:list-users root) #'string<)))
      (is (equal '("root" "writer") (sort (etcd:list-roles root) #'string<)))
      (is (equal '("writer") (etcd:user-roles root "ada")))
      (is (equalp (list (list :access :read-write :from (octets-of 97 47) :to (octets-of 97 48))
                        (list :access :read :from (octets-of 98) :to nil)
                        (list :access :write :from (octets-of 119) :to nil))
                  (etcd:role-permissions root "writer")))
      (etcd:put root "b" "1")
      (let ((ada (etcd:as-user root "ada" "countess")))
        (is (string= "ada" (etcd:etcd-user ada)))
        (etcd:put ada "a/x" "1")
        (is (string= "1" (etcd:entry-text (etcd:fetch ada "b"))))
        (signals etcd:access-denied (etcd:put ada "b" "2"))
        (signals etcd:access-denied (etcd:fetch ada "c"))
        (signals etcd:access-denied (etcd:add-user ada "eve" "x"))
        (signals etcd:access-denied (etcd:watch ada #'list :key "c"))
        (signals etcd:access-denied (etcd:transact ada :then '((:put "a/y" "1") (:put "b" "2"))))
        (is (null (etcd:fetch ada "a/y")))
        (etcd:close-etcd ada))
      (signals etcd:access-denied
        (etcd:fetch (etcd:as-user root "ada" "baroness") "a/x"))
      (signals etcd:access-denied
        (etcd:fetch (etcd:as-user root "nobody" "x") "a/x"))
      (signals etcd:already-exists (etcd:add-user root "ada" "x"))
      (signals etcd:already-exists (etcd:add-role root "writer"))
      (signals etcd:not-found (etcd:user-roles root "nobody"))
      (signals etcd:not-found (etcd:role-permissions root "nothing"))
      (signals etcd:not-found (etcd:grant-role root "ada" "nothing"))
      (etcd:revoke-permission root "writer" :key "b")
      (signals etcd:not-ready (etcd:revoke-permission root "writer" :key "b"))
      (etcd:revoke-role root "ada" "writer")
      (signals etcd:access-denied (etcd:fetch (etcd:as-user root "ada" "countess") "a/x"))
      (signals etcd:not-ready (etcd:revoke-role root "ada" "writer"))
      (etcd:remove-role root "writer")
      (etcd:remove-user root "ada")
      (is (equal '("root") (etcd:list-users root)))
      (etcd:disable-authentication root)
      ;; nobody is asked who he is, and who says so all the same is heard
      (is (string= "1" (etcd:entry-text (etcd:fetch root "b"))))
      (is (string= "1" (etcd:entry-text (etcd:fetch *etcd* "b")))))
    (signals misuse (etcd:make-etcd "a:1" :user "ada"))
    (signals misuse (etcd:make-etcd "a:1" :password "x"))
    (signals misuse (etcd:make-etcd "a:1" :user "" :password "x"))
    (signals misuse (etcd:as-user *etcd* nil nil))))

(test users-are-asked-for-while-a-client-runs
  "A client with a user works before authentication is enabled, after that, and after it is
disabled; a password may be fetched anew."
  (with-store (store "--bcrypt-cost" "4")
    (let ((password "countess") (asked 0))
      (etcd:with-etcd (ada (store-address store) :timeout +patience+
                       :user "ada" :password (lambda () (incf asked) password))
        (etcd:put ada "c" "free")
        (is (= 1 asked))
        (enable-users)
        (etcd:put ada "a/x" "1")
        (is (= 2 asked))
        (etcd:with-etcd (root (store-address store) :timeout +patience+
                              :user "root" :password "secret")
          (etcd:change-password root "ada" (setf password "lady"))
          (etcd:put ada "a/x" "2")
          (is (= 3 asked))
          (etcd:disable-authentication root)
          (etcd:put ada "c" "free again"))))))

(defun exercise-token (ada restart)
  "Have ADA watch, keep a lease and put entries; call RESTART, since when her token is not valid;
all of it goes on."
  (let* ((heard '()) (lost nil) (ended nil)
         (watch (etcd:watch ada (fn (changes _revision)
                                  (dolist (change changes)
                                    (push (etcd:entry-key (etcd:change-entry change)) heard)))
                            :prefix "a/" :on-end (lambda (condition) (setf ended condition))))
         (lease (etcd:grant-lease ada 10 :on-loss (lambda (condition) (setf lost condition)))))
    (etcd:put ada "a/lease" "1" :lease lease)
    (etcd:put ada "a/1" "1")
    (let ((before (clgrpc.etcd::etcd-token ada)))
      (funcall restart)
      (etcd:put ada "a/2" "1" :timeout +patience+)
      (is (string/= before (clgrpc.etcd::etcd-token ada))))
    (etcd:put ada "a/3" "1" :timeout +patience+)
    (eventually (= 4 (length heard)))
    (is (equal '("a/lease" "a/1" "a/2" "a/3") (reverse heard)))
    ;; it is renewed since
    (let ((end (lease-end lease)))
      (eventually (< end (lease-end lease))))
    (is-true (etcd:lease-alive-p lease))
    (is-true (etcd:fetch ada "a/lease"))
    (is (null lost))
    (is (null ended))
    (is-true (etcd:watch-open-p watch))))

(test tokens-that-etcd-forgets
  "etcd forgets a user's simple tokens when his password is changed; calls, watches and leases get
new ones, through a restart, too."
  (with-store (store "--bcrypt-cost" "4")
    (enable-users)
    (etcd:with-etcd (ada (store-address store) :timeout +patience+ :user "ada" :password "countess"
                                               :backoff-maximum-seconds 0.2)
      (exercise-token ada (lambda ()
                            (etcd:change-password (etcd:as-user ada "root" "secret")
                                                  "ada" "countess")
                            (end-store store)
                            (begin-store store))))))

(test tokens-that-end
  "Signed tokens (JWT) end after three seconds, or up to one less, since etcd writes their end in
whole seconds; calls, watches and leases get new ones."
  (support:with-folder (folder)
    (let ((private (format nil "~Aprivate.pem" folder))
          (public (format nil "~Apublic.pem" folder)))
      (uiop:run-program (list "openssl" "genrsa" "-traditional" "-out" private "2048"))
      (uiop:run-program (list "openssl" "rsa" "-in" private "-pubout" "-out" public))
      (with-store (store "--bcrypt-cost" "4" "--auth-token"
                         (format nil "jwt,pub-key=~A,priv-key=~A,sign-method=RS256,ttl=3s"
                                 public private))
        (enable-users)
        (etcd:with-etcd (ada (store-address store) :timeout +patience+
                             :user "ada" :password "countess"
                                                   :backoff-maximum-seconds 0.2)
          (let ((ended nil))
            (exercise-token ada (lambda ()
                                  (setf ended (clgrpc.etcd::etcd-token ada))
                                  (sleep 3.2)))
            ;; a watch is begun with a token that has ended
            (setf (clgrpc.etcd::etcd-token ada) ended))
          (is-true (etcd:watch ada (constantly nil) :prefix "a/"))
          ;; users and roles have changed since the token was made
          (etcd:with-etcd (root (store-address store) :timeout +patience+
                                :user "root" :password "secret")
            (etcd:put ada "a/4" "1")
            (etcd:add-user root "bob" "x")
            (etcd:put ada "a/5" "1")))))))

(test many-ask-for-a-token-once
  "Threads that find the token invalid at one time fetch one new token."
  (with-store (store "--bcrypt-cost" "4")
    (enable-users)
    (let ((metrics (metrics:make-metrics)))
      (etcd:with-etcd (ada (store-address store) :timeout +patience+
                           :user "ada" :password "countess"
                                                 :metrics metrics)
        (etcd:put ada "a/1" "1")
        (setf (clgrpc.etcd::etcd-token ada) "invalid")
        (mapc #'sb-thread:join-thread
              (loop repeat 8
                    collect (in-thread (etcd:put ada "a/1" "2"))))
        (is (= 2 (figure metrics "etcd.client.tokens")))))))

(test passwords-that-are-not-to-be-had
  "While the function of the password fails calls are told so; a watch and a lease whose tokens have
ended wait until it does not, and go on."
  (let ((password 'error) (asked 0))
    (with-stand-in (store other :user "ada" :password (lambda ()
                                                        (incf asked)
                                                        (if (eq 'error password)
                                                            (error "The safe is closed.")
                                                            password)))
      (handler-case (progn (etcd:fetch *etcd* "a") (is-true nil))
        (etcd:unavailable (condition)
          (is (typep (etcd:etcd-error-cause condition) 'simple-error))))
      (setf password 7)
      (signals etcd:unavailable (etcd:fetch *etcd* "a"))
      (setf password "countess")
      (let* ((heard 0) (ended nil) (lost nil)
             (watch (etcd:watch *etcd* (fn (changes _revision) (incf heard (length changes)))
                                :key "a" :on-end (lambda (condition) (setf ended condition))))
             (lease (etcd:grant-lease *etcd* 3 :on-loss (lambda (condition)
                                                          (setf lost condition))))
             (denied 0))
        (setf password 'error)
        (with-hook (store name call next)
          (cond ((and (member name '(:watch :lease-keep-alive)) (eq 'error password))
                 (incf denied)
                 (status:fail :unauthenticated "etcdserver: invalid auth token"))
                (t (next))))
        (let ((before asked) (end (lease-end lease)))
          (break-streams store)
          (eventually (and (< (+ 3 before) asked) (< 2 denied)))
          (setf password "countess")
          (etcd:put other "a" "1")
          (eventually (= 1 heard))
          (is-true (etcd:watch-open-p watch))
          (eventually (or lost (< end (lease-end lease))))
          (is (null lost))
          (is (null ended)))))))

(test a-lease-asks-for-a-token-until-it-has-one
  "The token of the keepalive is not valid any more, and etcd, which has too much to do, gives none
at first: it is asked for again, and the lease is renewed."
  (with-stand-in (store other :user "ada" :password "countess")
    (let* ((lost nil) (tokens 0) (denied 0)
           (lease (etcd:grant-lease *etcd* 60 :on-loss (lambda (condition) (setf lost condition))))
           (end (lease-end lease)))
      (with-hook (store name call next)
        (case name
          (:authenticate (when (= 1 (incf tokens))
                           (status:fail :resource-exhausted "etcdserver: too many requests"))
           (next))
          (:lease-keep-alive (when (< tokens 2)
                               (incf denied)
                               (status:fail :unauthenticated "etcdserver: invalid auth token"))
           (next))
          (t (next))))
      ;; it is due for renewal now
      (setf (clgrpc.etcd::renewal-next-ns (clgrpc.etcd::lease-renewal lease)) 0)
      (loop:wake-job (clgrpc.etcd::keepalive-job (clgrpc.etcd::etcd-keepalive *etcd*)))
      (eventually (< end (lease-end lease)))
      (is (= 2 tokens))
      (is (<= 2 denied))
      (is (null lost)))))
