;;;; Where things go wrong: an etcd, its data, if this is root, on a file system of its own which
;;;; can be filled, and a proxy before it, which cuts and delays connections (toxiproxy, built with
;;;; Go). Without Go clients connect to etcd itself, and what needs the proxy is passed over.

(in-package #:clgrpc.tests.faults)
(in-suite :clgrpc.faults)

(defstruct (place (:copier nil))
  "See above."
  (store nil)                           ; the etcd, a SHARED:STORE
  (folder "" :type string)              ; that of the data
  (mounted nil)                         ; true if FOLDER is a file system of its own
  (proxy nil)                           ; the proxy's program, or nil
  (api nil)                             ; where the proxy takes commands, HOST:PORT
  (address "")                          ; where clients connect, or an engine in memory
  (random (make-random-state t) :type random-state)) ; what is done when

(defconstant +disk-megabytes+ 192 "etcd sets 128 MB of it aside for its log.")

(defun run-quietly (&rest command)
  "Run COMMAND; return true if it ends with 0, and what it has printed."
  (multiple-value-bind (output error-output code)
      (uiop:run-program command :output '(:string :stripped t) :error-output :string
                                :ignore-error-status t)
    (declare (ignore error-output))
    (values (zerop code) output)))

(defun mount-folder (folder)
  "Make FOLDER; return true if it is a file system of its own."
  (ensure-directories-exist folder)
  (run-quietly "mount" "-t" "tmpfs" "-o" (format nil "size=~Dm" +disk-megabytes+) "tmpfs" folder))

;;; The proxy

(defun ask-proxy (place method path &optional json)
  "Have the proxy of PLACE do METHOD of PATH with JSON, a string; return its answer."
  (multiple-value-bind (done output)
      (apply #'run-quietly "curl" "--silent" "--show-error" "--fail" "--max-time" "10"
             "--request" method (format nil "http://~A~A" (place-api place) path)
             (and json (list "--data" json)))
    (unless done (error "The proxy has not done ~A ~A ~A: ~A" method path json output))
    output))

(defun begin-proxy (place)
  "Put a proxy before the etcd of PLACE, if it can be built."
  (let ((program (support:peer-program "toxiproxy")))
    (when program
      (setf (place-proxy place) (support:start-program program '())
            (place-api place) (support:server-address (place-proxy place)))
      (let* ((answer (loop repeat 100
                           thereis (ignore-errors
                                    (ask-proxy place "POST" "/proxies"
                                               (format nil "{\"name\":\"etcd\",\"listen\":~
                                                            \"127.0.0.1:0\",\"upstream\":\"~A\"~
                                                            ,\"enabled\":true}"
                                                       (shared:store-address
                                                        (place-store place)))))
                           do (sleep 0.05)))
             (start (search "\"listen\":\"" answer)))
        (unless start (error "The proxy does not listen: ~A" answer))
        (let ((start (+ start (length "\"listen\":\""))))
          (setf (place-address place) (subseq answer start (position #\" answer
                                                                      :start start))))))))

;;; The whole

(defun call-with-place (function)
  (let* ((folder (format nil "/tmp/clgrpc-faults-~36R/" (random (expt 36 8)
                                                                (make-random-state t))))
         (mounted (mount-folder folder))
         (store (shared::new-store :folder (format nil "~Adata/" folder)))
         (place (make-place :store store :folder folder :mounted mounted
                            :address (shared:store-address store))))
    (unwind-protect
         (progn
           (shared:begin-store store)
           (begin-proxy place)
           (funcall function place))
      (when (shared:store-program store) (support:stop-program (shared:store-program store)))
      (when (place-proxy place) (support:stop-program (place-proxy place)))
      (when mounted (run-quietly "umount" "--lazy" folder))
      (uiop:delete-directory-tree (pathname folder) :validate t :if-does-not-exist :ignore))))

(defmacro with-place ((place) &body body)
  "Evaluate BODY with PLACE a new one, which is taken down on the way out."
  `(call-with-place (lambda (,place) ,@body)))

(defun place-program (place)
  "The program that etcd is."
  (shared:store-program (place-store place)))

(defun begin-again (place)
  "Start the etcd of PLACE, which has ended or is to end, over its data."
  (shared:begin-store (place-store place)))
