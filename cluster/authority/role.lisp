;;;; Roles, and the callers that have them. A role is given by a permission, (ROLE . PATTERN): an
;;;; identity that the pattern matches has the role.
;;;;
;;;; A caller within the image has all roles. Without TLS, and if no permission is given at all,
;;;; every caller has all roles except :join. In all other cases a caller has only the roles that
;;;; were given to it.

(in-package #:clgrpc.authority)

(defparameter *roles* '(:start :work :read :operate :join :raft)
  "All roles: :start starts and signals workflows; :work works on them; :read reads their state;
:operate cancels and deletes them; :join lets a call be a member of the cluster; :raft sends as a
member of a Raft group.")

(defstruct (permission (:constructor make-permission (role kind pattern)) (:copier nil))
  "The permission that gives ROLE to every identity that matches PATTERN."
  (role nil :type keyword :read-only t) ; the role that is given
  (kind nil :type (or null string) :read-only t) ; the kind of tasks, for :work; nil: all kinds
  ;; :anyone includes peers without a certificate
  (pattern nil :type (or pattern (eql :anyone)) :read-only t))

(defstruct (authority (:constructor %make-authority (permissions)) (:copier nil))
  "The roles that peers have; see MAKE-AUTHORITY."
  (permissions '() :type list :read-only t)) ; the permissions that are given

(document-functions
  authority-p "True of an authority, as MAKE-AUTHORITY returns.")

(defun check-permission (permission)
  "Return PERMISSION if it is valid: a cons of a role and a pattern. A role is :start, :work, :read,
:operate, :join or :raft, or (:work KIND) for tasks of that KIND, a string. A pattern is a string: a
DNS name or a SPIFFE identity. In a pattern * stands for one label or one segment of the path; in
patterns of :join and :raft, {name} stands for the name of the member. The pattern \"*\" matches
every identity; \"anyone\" also matches a peer without a certificate. Signal MISUSE otherwise. From
any thread."
  (parse-permission permission)
  permission)

(defun parse-permission (permission)
  "The PERMISSION that a cons of a role and a pattern means. Signal MISUSE."
  (unless (and (consp permission) (stringp (cdr permission)))
    (misuse "A permission is a cons of a role and a pattern, unlike ~S." permission))
  (destructuring-bind (role &optional kind &rest more) (alexandria:ensure-list (car permission))
    (unless (and (member role *roles*)
                 (null more)
                 (or (null kind) (and (eq :work role) (stringp kind))))
      (misuse "~S is not a role. The roles are ~{~(~S~)~^, ~}, and (:work KIND)." (car permission)
              *roles*))
    (when (and (search *name-place* (cdr permission)) (not (member role '(:join :raft))))
      (misuse "~A is allowed only in patterns of :join and :raft, unlike ~S." *name-place*
              (cdr permission)))
    (make-permission role kind (if (string= "anyone" (cdr permission))
                                   :anyone
                                   (make-pattern (cdr permission))))))

(defun make-authority (permissions)
  "Return an authority that gives PERMISSIONS, a list of permissions as CHECK-PERMISSION accepts
them. Signal MISUSE. From any thread."
  (%make-authority (mapcar #'parse-permission permissions)))

(defun given-p (permission identities role kind name)
  "True if PERMISSION gives ROLE, for tasks of KIND or for any, to a peer with IDENTITIES."
  (let ((pattern (permission-pattern permission)))
    (and (eq role (permission-role permission))
         (or (null kind) (null (permission-kind permission))
             (string= kind (permission-kind permission)))
         (or (eq :anyone pattern)
             (some (lambda (identity) (matches-p pattern identity name)) identities)))))

(defun open-p (authority role call)
  "True if each peer that can connect has ROLE, because no permissions were given and TLS is not
used."
  (and (null (authority-permissions authority))
       (not (eq :join role))
       (null (rpc:call-security call))))

(defun refusal-text (identities role kind name)
  (format nil "~:[the peer, which has shown no certificate with a name,~;~:*~{~A~^, ~}~] ~
               may not ~(~A~)~@[ ~A~]~@[ as ~A~]: no permission gives that role"
          (mapcar #'printable-text identities) (if (eq :raft role) "send" role)
          (and kind (printable-text kind))
          (and name (printable-text name))))

(defun access-refusal (authority role call &key kind name)
  "Return nil if AUTHORITY gives ROLE to the peer of CALL; otherwise return a text for the peer with
the reason for the refusal. CALL is the server's end of a call, or nil. KIND is the kind of tasks
for :work, or nil. NAME is the name of a member: for :join, the member that the peer asks to be; for
:raft, the member that the sender claims to be. From any thread."
  (unless (or (within-image-p call) (open-p authority role call))
    (let ((identities (call-identities call)))
      (unless (some (lambda (permission) (given-p permission identities role kind name))
                    (authority-permissions authority))
        (refusal-text identities role kind name)))))

(defun certificates-asked-p (credentials)
  "True if a server of CREDENTIALS, or nil, asks its peers for certificates."
  (and (typep credentials 'loop:tls-credentials)
       (not (eq :none (loop:tls-credentials-client-certificates credentials)))))

(defun authority-warning (authority credentials roles)
  "Return a warning, a string, about AUTHORITY for the operator of a server with CREDENTIALS, or
nil; ROLES is a text such as \"read\". Return nil if no warning is needed. From any thread."
  (let ((permissions (authority-permissions authority)))
    (cond ((and (null permissions) credentials)
           (format nil "with TLS and without permissions no call may ~A" roles))
          ((null permissions)
           (format nil "without TLS each peer that can connect may ~A" roles))
          ((and (not (certificates-asked-p credentials))
                (notevery (lambda (permission) (eq :anyone (permission-pattern permission)))
                          permissions))
           "the server does not request certificates: permissions for names have no effect"))))
