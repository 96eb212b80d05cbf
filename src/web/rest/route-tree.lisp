;;;; Which route a request has. The templates of all routes are one tree, a level for each segment.
;;;; A path is looked up in it with preference, from its first segment on, for a literal over "*"
;;;; over "**", and comes back from what leads nowhere; first with the part after the last colon as
;;;; a verb, then without. So the route depends on the path alone, not on the order in which routes
;;;; were given; each node of the tree is seen once at most. "*" matches no empty segment, "**" any
;;;; number of any.
;;;;
;;;; Two routes of one method of HTTP whose templates match the same paths are an error when the
;;;; router is made.

(in-package #:clgrpc.rest)

(defstruct (node (:copier nil))
  "What the paths that lead here may go on with."
  (literals nil :type (or null hash-table)) ; from a segment to its node
  (one nil :type (or null node))        ; that * leads to
  (ends '() :type list)                 ; the routes that end here
  (rests '() :type list))               ; the routes that end with ** here

(defstruct (router (:constructor %make-router (root routes)) (:copier nil))
  "The routes of a server."
  (root nil :type node :read-only t)    ; of the tree
  (routes '() :type list :read-only t)) ; all, as they were given

(document-functions
  router-routes "The routes of ROUTER in the order in which they were given.")

(defmethod print-object ((router router) stream)
  (print-unreadable-object (router stream :type t)
    (format stream "~D route~:P" (length (router-routes router)))))

(defun route-suffix (route)
  "The verb that ends ROUTE's template, or nil."
  (template-verb (route-template route)))

(defun enter-end (route routes)
  "ROUTES, which match the same paths but for their verbs, with ROUTE, those for any method last."
  (let ((same (find-if (lambda (other)
                         (and (equal (route-suffix other) (route-suffix route))
                              (string= (route-verb other) (route-verb route))))
                       routes)))
    (when same
      (let ((*rule* (route-text route)))
        (wrong-rule "it matches the same requests as ~A" (route-text same))))
    (if (string= "*" (route-verb route)) (append routes (list route)) (cons route routes))))

(defun enter-route (root route)
  "Add ROUTE to the tree of ROOT."
  (let ((node root))
    (loop for segment across (template-segments (route-template route))
          do (case segment
               (:rest (setf (node-rests node) (enter-end route (node-rests node)))
                (return-from enter-route nil))
               (:one (setf node (or (node-one node) (setf (node-one node) (make-node)))))
               (t (let ((table (or (node-literals node)
                                   (setf (node-literals node) (make-hash-table :test 'equal)))))
                    (setf node (or (gethash segment table)
                                   (setf (gethash segment table) (make-node))))))))
    (setf (node-ends node) (enter-end route (node-ends node)))))

(defun make-router (routes)
  "Return a router of ROUTES, a list. Signal RULE-ERROR if two of them match the same requests; it
names both."
  (let ((root (make-node)))
    (dolist (route routes) (enter-route root route))
    (%make-router root routes)))

;;; Paths

(defstruct (match (:constructor make-match (text starts ends)) (:copier nil))
  "A path that is being looked up."
  (text "" :type simple-string :read-only t) ; all of it
  (starts #() :type simple-vector :read-only t) ; where each segment begins
  (ends #() :type simple-vector :read-only t)) ; and ends, the last without its verb

(defun split-path (path)
  "The starts and ends of the segments of PATH, which begins with a slash."
  (let ((starts '()) (ends '()))
    (loop for slash = 0 then next
          for next = (position #\/ path :start (1+ slash))
          do (push (1+ slash) starts)
             (push (or next (length path)) ends)
          while next)
    (values (coerce (nreverse starts) 'simple-vector) (coerce (nreverse ends) 'simple-vector))))

(defun segment-text (match index)
  "The segment of MATCH at INDEX, decoded."
  (decode-text (match-text match) (svref (match-starts match) index)
               (svref (match-ends match) index)))

(defun map-matches (function root match suffix)
  "Call FUNCTION with each route of the tree of ROOT that has the verb SUFFIX, or none if that is
nil, and that MATCH leads to, the preferred first."
  (declare (type function function))
  (let ((count (length (match-starts match))))
    (labels ((tell (routes)
               (dolist (route routes)
                 (when (equal suffix (route-suffix route)) (funcall function route))))
             (walk (node index)
               (cond ((= index count) (tell (node-ends node)))
                     (t
                      (when (node-literals node)
                        (let ((next (gethash (segment-text match index) (node-literals node))))
                          (when next (walk next (1+ index)))))
                      (when (and (node-one node)
                                 (< (the index (svref (match-starts match) index))
                                    (the index (svref (match-ends match) index))))
                        (walk (node-one node) (1+ index)))))
               (tell (node-rests node))))
      (walk root 0))))

(defun verb-start (path starts)
  "The index of the colon in PATH after which its verb would be, or nil."
  (let ((colon (position #\: path :from-end t)))
    (and colon (>= colon (the index (svref starts (1- (length starts))))) colon)))

(defun map-all-matches (function root path)
  "Call FUNCTION with each route that PATH leads to, the preferred first, and with the match."
  (multiple-value-bind (starts ends) (split-path path)
    (let* ((colon (verb-start path starts))
           (short (and colon (copy-seq ends))))
      (flet ((look (match suffix)
               (map-matches (lambda (route) (funcall function route match)) root match suffix)))
        (when colon
          (setf (svref short (1- (length short))) colon)
          (look (make-match path starts short) (decode-text path (1+ colon) (length path))))
        (look (make-match path starts ends) nil)))))

(defun takes-verb-p (route verb)
  (or (string= verb (route-verb route)) (string= "*" (route-verb route))))

(defun allowed-verbs (verbs)
  "The methods of HTTP that a path has whose routes have VERBS."
  (sort (remove-duplicates (if (member "GET" verbs :test #'string=) (cons "HEAD" verbs) verbs)
                           :test #'string=)
        #'string<))

(defun find-route (router verb path)
  "Return the route of ROUTER for a request with the method of HTTP VERB and the PATH, as it came
and without its query, and the match that BIND-MESSAGE takes. If there is none return nil and the
list of methods of HTTP that have one for the path. HEAD is answered by GET's route if it has none.
Signal REQUEST-ERROR if PATH is not percent-encoded UTF-8."
  (let ((path (coerce path 'simple-string)) (verbs '()))
    (unless (and (plusp (length path)) (char= #\/ (char path 0)))
      (return-from find-route (values nil '())))
    (map-all-matches (lambda (route match)
                       (when (takes-verb-p route verb)
                         (return-from find-route (values route match)))
                       (push (route-verb route) verbs))
                     (router-root router) path)
    (if (and (string= "HEAD" verb) (member "GET" verbs :test #'string=))
        (find-route router "GET" path)
        (values nil (allowed-verbs verbs)))))
