;;;; Where things go wrong: an etcd of one member or three, its data, if this is root, on a file
;;;; system of its own which can be filled, and a proxy before each member, which cuts and delays
;;;; connections (toxiproxy, built with Go). Without Go clients connect to etcd itself, and what
;;;; needs the proxy is passed over.

(in-package #:clgrpc.tests.faults)

(defstruct (place (:copier nil))
  "See above."
  (stores '() :type list)               ; the members of etcd, SHARED:STOREs
  (folder "" :type string)              ; that of the data
  (mounted nil)                         ; true if FOLDER is a file system of its own
  (proxy nil)                           ; the proxy's program, or nil
  (api nil)                             ; where the proxy takes commands, HOST:PORT
  (address '())                         ; where clients connect, HOST:PORTs, or an engine in memory
  ;; when a former leader of etcd, which had hung, went on, if leases end early by that; or nil
  (former-leader-ns nil)
  (random (make-random-state t) :type random-state)) ; what is done when

(defconstant +disk-megabytes+ 448
  "For a member of etcd, which sets 128 MB aside for its log, and more as that grows: 10,000
workflows write 130 MB, to the log and again to its file.")

(defun run-quietly (&rest command)
  "Run COMMAND; return true if it ends with 0, and what it has printed."
  (multiple-value-bind (output error-output code)
      (uiop:run-program command :output '(:string :stripped t) :error-output :string
                                :ignore-error-status t)
    (declare (ignore error-output))
    (values (zerop code) output)))

(defun mount-folder (folder members)
  "Make FOLDER, for MEMBERS of etcd; return true if it is a file system of its own."
  (ensure-directories-exist folder)
  (run-quietly "mount" "-t" "tmpfs" "-o" (format nil "size=~Dm" (* members +disk-megabytes+))
               "tmpfs" folder))

;;; The proxy, one program, in which each member has one

(defun proxy-names (place)
  (loop for i from 1 to (length (place-stores place)) collect (format nil "etcd-~D" i)))

(defun ask-proxy (place method path &optional json)
  "Have the proxy of PLACE do METHOD of PATH with JSON, a string; return its answer."
  (multiple-value-bind (done output)
      (apply #'run-quietly "curl" "--silent" "--show-error" "--fail" "--max-time" "10"
             "--request" method (format nil "http://~A~A" (place-api place) path)
             (and json (list "--data" json)))
    (unless done (error "The proxy has not done ~A ~A ~A: ~A" method path json output))
    output))

(defun listen-before (place name store)
  "Have the proxy of PLACE listen as NAME for connections to STORE; return its address."
  (let* ((answer (loop repeat 100
                       thereis (ignore-errors
                                (ask-proxy place "POST" "/proxies"
                                           (format nil "{\"name\":\"~A\",\"listen\":~
                                                        \"127.0.0.1:0\",\"upstream\":\"~A\"~
                                                        ,\"enabled\":true}"
                                                   name (shared:store-address store))))
                       do (sleep 0.05)))
         (start (search "\"listen\":\"" answer)))
    (unless start (error "The proxy does not listen: ~A" answer))
    (let ((start (+ start (length "\"listen\":\""))))
      (subseq answer start (position #\" answer :start start)))))

(defun begin-proxy (place)
  "Put a proxy before each member of the etcd of PLACE, if there is a Go to build it."
  (unless (support:go-absence)
    (let ((program (support:need-peer "toxiproxy")))
      (setf (place-proxy place) (support:start-program program '())
            (place-api place) (support:server-address (place-proxy place))
            (place-address place) (loop for name in (proxy-names place)
                                        for store in (place-stores place)
                                        collect (listen-before place name store))))))

;;; The whole

(defun new-stores (count folder)
  "COUNT members of one etcd, 1 or 3, that have not begun, with their data in FOLDER."
  (let ((stores (if (= 1 count) (list (shared:new-store)) (shared:new-cluster))))
    (dolist (store stores stores)
      (setf (shared:store-folder store) (format nil "~A~A/" folder (shared:store-name store))))))

(defun own-addresses (place)
  "Where the members of etcd are themselves, without proxies."
  (mapcar #'shared:store-address (place-stores place)))

(defun new-folder-name (name)
  "The name of a folder that there is not yet, among those of TMPDIR. NAME says what for."
  (format nil "~Aclgrpc-~A-~36R/" (uiop:native-namestring (uiop:default-temporary-directory)) name
          (random (expt 36 8) (make-random-state t))))

(defun call-with-place (function members)
  (let* ((folder (new-folder-name "faults"))
         (mounted (mount-folder folder members))
         (place (make-place :stores (new-stores members folder) :folder folder :mounted mounted)))
    (setf (place-address place) (own-addresses place))
    (unwind-protect
         (progn
           (mapc #'shared:begin-store (place-stores place))
           (begin-proxy place)
           (funcall function place))
      (dolist (program (place-programs place)) (support:stop-program program))
      (when (place-proxy place) (support:stop-program (place-proxy place)))
      (when mounted (run-quietly "umount" "--lazy" folder))
      (uiop:delete-directory-tree (pathname folder) :validate t :if-does-not-exist :ignore))))

(defmacro with-place ((place members) &body body)
  "Evaluate BODY with PLACE a new one, whose etcd has MEMBERS, 1 or 3; it is taken down on the way
out."
  `(call-with-place (lambda (,place) ,@body) ,members))

(defun place-programs (place)
  (remove nil (mapcar #'shared:store-program (place-stores place))))

(defun begin-again (place)
  "Start the etcd of PLACE, which has ended or is to end, over its data."
  (mapc #'shared:begin-store (place-stores place)))

;;; Who leads

(defun leading-p (store)
  "True if STORE, a member of etcd, leads the others by its own account."
  (handler-case
      (etcd:with-etcd (etcd (shared:store-address store) :timeout 1)
        (let ((status (etcd:member-status etcd)))
          (eql (getf status :member) (getf status :leader))))
    (etcd:etcd-error () nil)))

(defun await-leader (place &optional former)
  "Wait until a member of etcd but FORMER leads; return it."
  (or (shared:wait-until (lambda () (find-if #'leading-p (remove former (place-stores place)))))
      (error "No member of etcd leads.")))

;;; A former leader that has hung, and goes on, has old leases revoked which the present leader has
;;; renewed: etcd's issue 15247, mended in 3.4.31 and 3.5.13.

(defun version-numbers (text)
  "The numbers in TEXT, a version of etcd."
  (mapcar (lambda (part) (or (parse-integer part :junk-allowed t) 0))
          (uiop:split-string text :separator ".")))

(defun revokes-renewed-p (version)
  "True if a former leader of etcd's VERSION, a text, has leases revoked that were renewed."
  (destructuring-bind (&optional (major 0) (minor 0) (patch 0) &rest more) (version-numbers version)
    (declare (ignore more))
    (and (= 3 major)
         (or (< minor 4)
             (and (= 4 minor) (< patch 31))
             (and (= 5 minor) (< patch 13))))))

(defun note-former-leader (place store)
  "STORE, a member of etcd that led it, is about to go on."
  (let ((others (remove store (place-stores place))))
    (etcd:with-etcd (etcd (mapcar #'shared:store-address others) :timeout 10)
      (when (revokes-renewed-p (getf (etcd:member-status etcd) :version))
        (setf (place-former-leader-ns place) (monotonic-ns))))))

(defconstant +revoking-seconds+ 10
  "How long after it has gone on users may notice that a former leader has had leases revoked.")

(defun leases-end-early-p (place)
  "True if leases may end now that etcd has renewed."
  (let ((then (place-former-leader-ns place)))
    (and then
         (< (- (monotonic-ns) then) (seconds-ns +revoking-seconds+)))))
