;;;; Users, roles and permissions. Users have roles, roles have permissions for keys and ranges of
;;;; them. The user and the role "root" may do anything. Once authentication is enabled each call
;;;; must identify its user: by :user and :password of MAKE-ETCD, or by a certificate whose common
;;;; name is the user's, if etcd runs with --client-cert-auth.

(in-package #:clgrpc.etcd)

(define-keyword-function enable-authentication (etcd &key timeout)
  "Turn authentication on: from now on etcd serves only users, with the rights of their roles. A
user named root with the role root must exist. Signal NOT-READY if there is no such user, or another
ETCD-ERROR. After that a client without a user can do nothing. From any thread."
  (ask etcd #'auth:auth-enable (pb:make-auth-enable-request) timeout)
  nil)

(define-keyword-function disable-authentication (etcd &key timeout)
  "Turn authentication off: etcd takes requests of all clients. Only the user root may do this.
Signal an ETCD-ERROR. From any thread."
  (ask etcd #'auth:auth-disable (pb:make-auth-disable-request) timeout)
  nil)

(define-keyword-function authentication-enabled-p (etcd &key timeout)
  "True if authentication is on, so that etcd serves authenticated users only. Signal an ETCD-ERROR
if etcd cannot report this, which needs version 3.5, or for any other failure. From any thread."
  (pb:auth-status-response-enabled
   (ask etcd #'auth:auth-status (pb:make-auth-status-request) timeout :twice t)))

;;; Users

(define-keyword-function add-user (etcd name password &key timeout)
  "Add a user called NAME with PASSWORD, strings; if PASSWORD is nil, the user can authenticate only
by a certificate. Signal ALREADY-EXISTS or another ETCD-ERROR. From any thread."
  (ask etcd #'auth:user-add
       (pb:make-auth-user-add-request
        :name name :password (or password "")
        :options (authpb:make-user-add-options :no-password (null password)))
       timeout)
  nil)

(define-keyword-function remove-user (etcd name &key timeout)
  "Remove the user NAME. Signal NOT-FOUND or another ETCD-ERROR. From any thread."
  (ask etcd #'auth:user-delete (pb:make-auth-user-delete-request :name name) timeout)
  nil)

(define-keyword-function change-password (etcd name password &key timeout)
  "Change the password of the user NAME to PASSWORD. The user's tokens become invalid. Signal
NOT-FOUND or another ETCD-ERROR. From any thread."
  (ask etcd #'auth:user-change-password
       (pb:make-auth-user-change-password-request :name name :password password)
       timeout)
  nil)

(define-keyword-function list-users (etcd &key timeout)
  "Return the names of all users, a list of strings. Signal an ETCD-ERROR. From any thread."
  (coerce (pb:auth-user-list-response-users
           (ask etcd #'auth:user-list (pb:make-auth-user-list-request) timeout :twice t))
          'list))

(define-keyword-function user-roles (etcd name &key timeout)
  "Return the names of the roles of the user NAME, a list of strings. Signal NOT-FOUND or another
ETCD-ERROR. From any thread."
  (coerce (pb:auth-user-get-response-roles
           (ask etcd #'auth:user-get (pb:make-auth-user-get-request :name name) timeout :twice t))
          'list))

(define-keyword-function grant-role (etcd user role &key timeout)
  "Give USER the ROLE, both given by name. Signal NOT-FOUND or another ETCD-ERROR. From any thread."
  (ask etcd #'auth:user-grant-role
       (pb:make-auth-user-grant-role-request :user user :role role) timeout)
  nil)

(define-keyword-function revoke-role (etcd user role &key timeout)
  "Take the ROLE from USER, both given by name. Signal NOT-FOUND if there is no such user, NOT-READY
if the user does not have the role, or another ETCD-ERROR. From any thread."
  (ask etcd #'auth:user-revoke-role
       (pb:make-auth-user-revoke-role-request :name user :role role) timeout)
  nil)

;;; Roles

(define-keyword-function add-role (etcd name &key timeout)
  "Add a role called NAME, a string, that permits nothing. Signal ALREADY-EXISTS or another
ETCD-ERROR. From any thread."
  (ask etcd #'auth:role-add (pb:make-auth-role-add-request :name name) timeout)
  nil)

(define-keyword-function remove-role (etcd name &key timeout)
  "Remove the role NAME, from all users as well. Signal NOT-FOUND or another ETCD-ERROR. From any
thread."
  (ask etcd #'auth:role-delete (pb:make-auth-role-delete-request :role name) timeout)
  nil)

(define-keyword-function list-roles (etcd &key timeout)
  "Return the names of all roles, a list of strings. Signal an ETCD-ERROR. From any thread."
  (coerce (pb:auth-role-list-response-roles
           (ask etcd #'auth:role-list (pb:make-auth-role-list-request) timeout :twice t))
          'list))

(defun permission-plist (permission)
  "The list of ROLE-PERMISSIONS for PERMISSION, a message."
  (list :access (case (authpb:permission-perm-type permission)
                  (:read :read)
                  (:write :write)
                  (:readwrite :read-write)
                  (t :unknown))
        :from (authpb:permission-key permission)
        :to (let ((end (authpb:permission-range-end permission)))
              (if (zerop (length end)) nil end))))

(define-keyword-function role-permissions (etcd name &key timeout)
  "Return the permissions of the role NAME, a list of plists. :ACCESS is :read, :write, :read-write
or, for an access that this client does not know, :unknown. :FROM is a key. :TO is the end of the
range that begins there, a single zero octet for the end of all keys, or nil for that key alone.
Keys are octets. Signal NOT-FOUND or another ETCD-ERROR. From any thread."
  (map 'list #'permission-plist
       (pb:auth-role-get-response-perm
        (ask etcd #'auth:role-get (pb:make-auth-role-get-request :role name) timeout))))

(defun key-or-range (key prefix from to)
  "Two values: the first key, and the end, of KEY alone, or of a range, see RANGE-OF."
  (cond ((and key (or prefix from to)) (misuse "Give a KEY or a range, not both."))
        (key (values (key-octets key) (make-octets 0)))
        (t (range-of prefix from to))))

(define-keyword-function grant-permission (etcd role access &key key prefix from to timeout)
  "Let ROLE, a name, permit ACCESS, :read, :write or :read-write, to KEY, or to a range of keys as
MAP-ENTRIES accepts it. Signal NOT-FOUND or another ETCD-ERROR. From any thread."
  (multiple-value-bind (start end) (key-or-range key prefix from to)
    (ask etcd #'auth:role-grant-permission
         (pb:make-auth-role-grant-permission-request
          :name role
          :perm (authpb:make-permission :perm-type (case access
                                                     ((:read :write) access)
                                                     (:read-write :readwrite)
                                                     (t (misuse "~S is not :read, :write or ~
                                                                :read-write." access)))
                                        :key start :range-end end))
         timeout))
  nil)

(define-keyword-function revoke-permission (etcd role &key key prefix from to timeout)
  "Remove from ROLE, a name, the permission for KEY, or for a range of keys; it must have been
granted for exactly that key or range. Signal NOT-FOUND if there is no such role, NOT-READY if it
has no such permission, or another ETCD-ERROR. From any thread."
  (multiple-value-bind (start end) (key-or-range key prefix from to)
    (ask etcd #'auth:role-revoke-permission
         (pb:make-auth-role-revoke-permission-request :role role :key start :range-end end)
         timeout))
  nil)
